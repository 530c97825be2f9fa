"""How a run has ended, for those who do not train."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.memory_store import MemoryStore
from recycle.control.board import keys
from recycle.control.board.board import Board
from recycle.control.host.agent import DONE, FENCED, STOPPED
from recycle.control.membership.messages import Death, Verdict
from recycle.control.membership.view import Member, View
from recycle.job import Server
from recycle.runtime.launch.process.outcome import end_with_run, was_kept
from recycle.runtime.net.endpoint import Endpoint

MEMBERS = tuple(Member(Server(pipeline, stage), 0) for pipeline in range(2) for stage in range(2))

DEAD, FINISHED, BEHIND, GOING = "dead", "finished", "finished in the view before", "on its way"


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


@pytest.mark.parametrize("status", [DONE, STOPPED])
def test_who_has_come_to_an_end_with_the_run_asks_no_store(status):
    class Asked(Endpoint):
        def connect(self, patience=0.0):
            raise AssertionError("it connects")

    assert end_with_run(Asked("127.0.0.1", 1, "token"), status, 0.01, lambda: False) == status
