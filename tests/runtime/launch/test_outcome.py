"""How a run has ended, for those who do not train."""

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.memory_store import MemoryStore
from recycle.control.board import keys
from recycle.control.board.board import Board
from recycle.control.host.agent import DONE, FENCED, STOPPED
from recycle.control.host.signs import HostSocket
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.messages import Death, Verdict
from recycle.control.membership.view import Member, View
from recycle.job import Server
from recycle.runtime.errors import RunError
from recycle.runtime.launch.process.outcome import before_run, end_with_run, goes_on, was_kept
from recycle.runtime.net.endpoint import Endpoint
from recycle.threads import NoneLeft

MEMBERS = tuple(Member(Server(pipeline, stage), 0) for pipeline in range(2) for stage in range(2))

DEAD, FINISHED, BEHIND, GOING = "dead", "finished", "finished in the view before", "on its way"


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (StoreLost("gone"), "the run cannot begin: gone; see what is said there, and start all again"),
        (NoneLeft("processes"), "the system gives no more processes: raise ulimit -u"),
    ],
)
def test_what_a_run_lacks_before_it_begins_is_one_line(cause, text):
    with pytest.raises(RunError, match=f"^{text}"), before_run():
        raise cause


def test_a_run_that_has_never_begun_was_not_kept():
    assert was_kept(Board(MemoryStore(), "token")) is False


@given(st.lists(st.sampled_from([DEAD, FINISHED, BEHIND, GOING]), min_size=4, max_size=4), st.booleans())
def test_a_run_was_kept_if_all_of_its_last_view_reached_its_end_and_lost_if_all_of_it_are_dead(fates, stop):
    board = Board(MemoryStore(), "token")
    board.verdicts.propose(Verdict(3, tuple(map(str, MEMBERS)), 0, stop="no live server" if stop else ""))
    for member, fate in zip(MEMBERS, fates, strict=True):
        if fate in (FINISHED, BEHIND):
            board.end.reach(View(3 if fate == FINISHED else 2, MEMBERS), member)
        elif fate == DEAD:
            board.failures.publish_death(Death(str(member), "was lost", "agent", 0.0))
    # Where some are left without the dead, they make another view.
    expected = {FINISHED: True, DEAD: False}.get(fates[0]) if len(set(fates)) == 1 else None
    assert was_kept(board) is (False if stop else expected)


def test_a_run_whose_view_a_stranger_has_taken_away_goes_on():
    store = MemoryStore()
    member = Board(store, "token")
    member.verdicts.propose(Verdict(3, tuple(map(str, MEMBERS)), 0))
    store.delete(keys.VIEW)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(was_kept, Board(store.clone(), "token"))
        while not asked.done():
            if store.get(keys.VIEW) is None:
                time.sleep(0.3)
                member.verdicts.newest()
    assert asked.result() is None


@pytest.mark.parametrize(("status", "expected"), [(DONE, DONE), (STOPPED, STOPPED), (FENCED, FENCED), (-9, 137)])
def test_a_process_ends_though_the_store_is_gone(status, expected):
    nobody = Endpoint("127.0.0.1", 1, "token")
    assert end_with_run(nobody, status, 0.01, lambda: False) == expected


def test_of_a_run_whose_store_does_not_answer_nobody_says_that_it_is_over():
    class Lost(Endpoint):
        def board(self, _=0.0):
            raise StoreLost("etcd does not answer")

    assert goes_on(Lost("127.0.0.1", 1, "token"))


@pytest.fixture
def agent():
    """An agent of this host: its token, and how to end it."""
    token = secrets.token_hex(8)
    socket = HostSocket(token)
    assert socket.listen()
    with ExitStack() as stack:
        stack.callback(socket.close)
        yield token, stack.close


class OftenLost(Endpoint):
    """An endpoint of a store that is lost a few times, and of a run that is kept."""

    def board(self, patience=30.0):
        if lost := next(self.losses, None):
            lost()
        store = MemoryStore()
        board = Board(store, self.token)
        board.verdicts.propose(Verdict(3, tuple(map(str, MEMBERS)), 0))
        for each in MEMBERS:
            board.end.reach(View(3, MEMBERS), each)
        return board


def lose():
    raise StoreLost("etcd is away")


def test_a_process_outwaits_a_loss_of_the_store_while_others_of_its_host_train(agent):
    token, _ = agent
    OftenLost.losses = iter([lose, lose])
    assert end_with_run(OftenLost("", 1, token), -9, 0.01, lambda: False) == DONE


def test_a_process_ends_without_the_store_once_no_other_of_its_host_trains(agent):
    token, end = agent

    def end_and_lose():
        end()
        lose()

    OftenLost.losses = iter([lose, end_and_lose, lose])
    assert end_with_run(OftenLost("", 1, token), -9, 0.01, lambda: False) == 137
    assert next(OftenLost.losses) is lose


@pytest.mark.parametrize("status", [DONE, STOPPED])
def test_who_has_come_to_an_end_with_the_run_asks_no_store(status):
    class Asked(Endpoint):
        def connect(self, patience=0.0):
            raise AssertionError("it connects")

    assert end_with_run(Asked("127.0.0.1", 1, "token"), status, 0.01, lambda: False) == status
