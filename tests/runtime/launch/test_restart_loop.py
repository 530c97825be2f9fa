"""After each life of a server, what comes next."""

import threading
from types import SimpleNamespace

import pytest

from harness.memory_store import MemoryStore
from recycle.control.board.board import Board
from recycle.control.host.agent import CUT_SHORT, DONE, FENCED
from recycle.control.membership.messages import Death, Verdict
from recycle.control.membership.view import SOLE, Member, ServerRank
from recycle.job import Server
from recycle.runtime.errors import RunError
from recycle.runtime.launch.meet.restart_loop import RestartLoop, serve_again
from recycle.runtime.launch.process.restarts import Restarts
from recycle.threads import NoneLeft

ONE, OTHER = Server(0, 1), Server(1, 1)
FIRST = Member(ONE, 0)
BEGUN = Verdict(0, (str(FIRST), str(Member(OTHER, 0))), 0)


class Run:
    """A run that goes on, and where its store is."""

    token = "token"

    def __init__(self):
        self.store = MemoryStore()
        self.board = Board(self.store, self.token)
        self.board.verdicts.propose(BEGUN)

    def connect(self):
        return self.store.clone()

    def lives(self, ranks=1):
        endpoint = SimpleNamespace(board=lambda: Board(self.connect(), self.token))
        return RestartLoop(endpoint, ranks, 0.01, lambda: False)


NOTHING = "the system gives no process"


class Served:
    """Serves with some ends, one after another."""

    def __init__(self, *statuses):
        self.incarnations = []
        self.said = []
        self._left = list(statuses)

    def __call__(self, member):
        self.incarnations.append(member.incarnation)
        status = self._left.pop(0)
        if status is NOTHING:
            raise NoneLeft("processes")
        return status

    def again(self, lives, limit=2):
        return serve_again(self, FIRST, lives, Restarts(limit), self.said.append)


@pytest.mark.parametrize(
    ("statuses", "lives", "said"),
    [([0], [0], 0), ([-9, 0], [0, 1], 0), ([-9, 1, FENCED], [0, 1, 2], 0), ([1, 1, 1, 0], [0, 1, 2], 1)],
)
def test_who_crashes_serves_again_in_another_life(statuses, lives, said):
    served = Served(*statuses)
    assert served.again(Run().lives()) == statuses[len(lives) - 1]
    assert served.incarnations == lives
    assert len(served.said) == said


def test_who_gets_no_process_is_started_when_there_is_one_and_one_line_says_so():
    served = Served(-9, NOTHING, NOTHING, 1, NOTHING, 0)
    assert served.again(Run().lives()) == 0
    assert served.incarnations == [0, 1, 1, 1, 2, 2]
    line = f"{ONE} cannot be started: {NoneLeft('processes')}; it is tried until it can"
    assert served.said == [line, line]


def test_who_gets_no_process_before_the_run_is_over_serves_no_more():
    run = Run()
    served = Served(-9, NOTHING)
    lives = run.lives()
    say = served.said.append

    def over(text):
        for each in BEGUN.view.members:
            run.board.end.reach(BEGUN.view, each)
        say(text)

    assert serve_again(served, FIRST, lives, Restarts(2), over) == CUT_SHORT
    assert served.incarnations == [0, 1]


def test_in_a_run_that_is_over_nobody_serves_again():
    run = Run()
    for each in BEGUN.view.members:
        run.board.end.reach(BEGUN.view, each)
    served = Served(-9)
    assert served.again(run.lives()) == -9
    assert served.incarnations == [0]


def test_all_ranks_of_a_server_come_back_in_the_same_life():
    run = Run()
    Board(run.connect(), run.token).joining.new_incarnation(ONE)  # somebody else's
    crashed, other = Served(-9, DONE), Served(FENCED, DONE)
    waiting = threading.Thread(target=other.again, args=(run.lives(ranks=2),))
    waiting.start()
    crashed.again(run.lives(ranks=2))
    waiting.join(120)
    assert crashed.incarnations == other.incarnations == [0, 2]


def test_who_waits_for_a_rank_that_never_comes_back_ends_with_the_run():
    run = Run()
    crashed, other = Served(-9), Served(FENCED)
    crashed.again(run.lives(ranks=2), limit=0)
    waiting = threading.Thread(target=other.again, args=(run.lives(ranks=2),))
    waiting.start()
    for each in BEGUN.view.members:
        run.board.end.reach(BEGUN.view, each)
    waiting.join(120)
    assert not waiting.is_alive()
    assert other.incarnations == [0]


def nobody(_):
    """Hears what is said."""


def test_before_a_run_has_begun_a_server_begins_its_first_life():
    run = Run()
    run.store = MemoryStore()
    assert run.lives(ranks=2).first(ONE, SOLE, 0.0, nobody) == FIRST


def test_on_a_replaced_host_a_server_begins_a_new_life_once_the_others_miss_it():
    run, lives = Run(), []
    replaced = threading.Thread(target=lambda: lives.append(run.lives().first(ONE, SOLE, 120.0, nobody)))
    replaced.start()
    run.board.declare_dead([Death(str(FIRST), "was lost", "heartbeat", 0.0)], "a host")
    replaced.join(120)
    assert lives == [Member(ONE, 1)]
    run.board.verdicts.propose(Verdict(1, BEGUN.members[1:], 0))
    assert run.lives().first(ONE, SOLE, 0.0, nobody) == Member(ONE, 2)


def test_all_ranks_that_are_started_anew_begin_the_same_life_though_the_view_changes_meanwhile():
    run = Run()
    ranks = [ServerRank(number, 2) for number in range(2)]
    run.board.declare_dead([Death(str(FIRST), "was lost", "heartbeat", 0.0)], "a host")

    def begin(rank):
        return run.lives(ranks=2).first(ONE, rank, 0.0, nobody)

    first = begin(ranks[0])
    run.board.verdicts.propose(Verdict(1, BEGUN.members[1:], 0))
    assert begin(ranks[1]) == first == Member(ONE, 1)
    # The host is replaced again, before it was let in, and once more after that.
    again = begin(ranks[1])
    assert begin(ranks[0]) == again == Member(ONE, 2)
    # It crashed there once, and came back by itself.
    crashed = run.board.joining.next_life(again)
    run.board.verdicts.propose(Verdict(2, (str(crashed), *BEGUN.members[1:]), 0))
    run.board.declare_dead([Death(str(crashed), "was lost", "heartbeat", 0.0)], "a host")
    assert [begin(rank) for rank in ranks] == [Member(ONE, 4)] * 2


def test_a_rank_that_comes_late_follows_the_others_of_its_life():
    run = Run()
    run.board.verdicts.propose(Verdict(1, BEGUN.members[1:], 0))
    ranks = [ServerRank(number, 2) for number in range(2)]
    life = run.lives(ranks=2).first(ONE, ranks[0], 0.0, nobody)
    following = run.lives(ranks=2).after_crash(life)
    late = run.lives(ranks=2).first(ONE, ranks[1], 0.0, nobody)
    assert late == life
    assert run.lives(ranks=2).after_others(late) == following


def test_a_server_that_is_alive_is_not_begun_again():
    said = []
    with pytest.raises(RunError, match="W0_1 is alive: the run goes on with it elsewhere"):
        Run().lives().first(ONE, SOLE, 0.05, said.append)
    assert len(said) == 1
