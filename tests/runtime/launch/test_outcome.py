"""How a run has ended, for those who do not train."""

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.memory_store import MemoryStore
from recycle.control.board import Board
from recycle.control.messages import Death, Verdict
from recycle.control.view import Member
from recycle.job import Server
from recycle.runtime.launch.outcome import was_kept

MEMBERS = tuple(Member(Server(pipeline, stage), 0) for pipeline in range(2) for stage in range(2))

DEAD, FINISHED, BEHIND, GOING = "dead", "finished", "finished in the view before", "on its way"


@settings(deadline=None)
@given(st.lists(st.sampled_from([DEAD, FINISHED, BEHIND, GOING]), min_size=4, max_size=4), st.booleans())
def test_a_runwas_kept_if_anybody_was_left_and_all_of_them_reached_its_end(fates, stop):
    board = Board(MemoryStore(), "token")
    assert was_kept(board) is False
    board.verdicts.propose(Verdict(3, tuple(map(str, MEMBERS)), 0, stop="no live server" if stop else ""))
    for member, fate in zip(MEMBERS, fates, strict=True):
        if fate in (FINISHED, BEHIND):
            board.end.reach(3 if fate == FINISHED else 2, member)
        elif fate == DEAD:
            board.end.reach(3, member)
            board.failures.publish_death(Death(str(member), "was lost", "agent", 0.0))
    alive = [fate for fate in fates if fate != DEAD]
    expected = None if set(alive) & {BEHIND, GOING} else bool(alive)
    assert was_kept(board) is (False if stop else expected)
