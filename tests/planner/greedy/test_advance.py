from hypothesis import given, settings
from hypothesis import strategies as st

from recycle.job import Job, Server, Stage
from recycle.plan.mode import Mode
from recycle.planner.greedy.advance import advance
from recycle.planner.greedy.list_scheduler import POLICIES, list_schedule
from recycle.planner.model.evaluate import value
from recycle.planner.model.problem import make_problem, one_pipeline
from tests.planner.legality import assert_legal
from tests.strategies import problems


@given(problems(), st.sampled_from(POLICIES), st.integers(1, 8))
@settings(max_examples=60)
def test_a_schedule_stays_legal_and_gets_no_longer(problem, policy, micro_batches):
    single = one_pipeline(problem, micro_batches)
    before = list_schedule(single, policy)
    after = advance(single, before)
    assert_legal(single, after)
    assert value(single, after) <= value(single, before)


def test_what_was_put_off_comes_at_once_where_memory_and_a_gap_allow_it():
    # The first server waits 5 for its first I, which is time for the F and, between two I, for a W of 2.
    stages = (Stage(1, 1, 2, 0, 0, 1, 0, 2), Stage(1, 4, 0, 0, 0, 1, 0, 3))
    problem = make_problem(Job(1, 3, stages, (0,)), (), Mode())
    programs = {Server(0, 0): [0, 1, 3, 4, 2, 6, 7, 5, 8], Server(0, 1): [0, 1, 2, 3, 4, 5, 6, 7, 8]}
    assert advance(problem, programs)[Server(0, 0)] == [0, 3, 1, 2, 6, 4, 5, 7, 8]
