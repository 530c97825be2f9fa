"""What is to be started again is started once there is a store, however often it was lost before."""

import time

from hypothesis import given
from hypothesis import strategies as st

from recycle.control.membership.errors import StoreLost
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member
from recycle.job import Server
from recycle.runtime.launch.supervise.replacements import Replacements


class Store:
    """A board whose connection is of no use any more once it was lost."""

    def __init__(self, there):
        self.there = there
        self.made = 0

    def connect(self):
        if not self.there:
            raise StoreLost("it is away")
        self.made += 1
        return self.made


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=8), st.integers(0, 3))
def test_every_life_is_started_once_in_turn_and_one_line_says_that_it_waits(moments, wanted):
    """At each moment the store is there or not, and a look may come with a connection that was lost since."""
    store, started, said = Store(True), [], []
    replacements = Replacements(store.connect, started.append, lambda server, text: said.append((server, text)), 0.0)
    servers = [Server(number, 0) for number in range(wanted)]

    def lives_of(server):
        def lives(board):
            if not store.there or board != store.made:
                raise StoreLost("it is away")
            return Participant.all_of(Member(server, 1), 2)

        return lives

    for server in servers:
        replacements.want(server, lives_of(server))
    board = store.connect()
    for there, anew in moments:
        store.there = there
        store.made += there and anew
        board = replacements.look(board if there else None) or board
    store.there = True
    for _ in range(2):
        board = replacements.look(board)
    assert started == [each for server in servers for each in Participant.all_of(Member(server, 1), 2)]
    waited = bool(servers) and (not moments or moments[0] != (True, False)) and bool(moments)
    assert said == (
        [(servers[0], f"the store is lost: {servers[0]} is started again when it is back")] if waited else []
    )


def test_what_was_refused_is_wanted_again_after_a_pause():
    started = []
    replacements = Replacements(lambda: 2, started.append, lambda server, text: None, 0.05)
    (refused,) = Participant.all_of(Member(Server(0, 0), 1), 1)
    replacements.want(Server(0, 0), lambda board: [refused], at_once=False)
    assert replacements.look(1) == 1
    assert started == []
    time.sleep(0.05)
    assert replacements.look(1) == 2
    assert started == [refused]
