from hypothesis import given
from hypothesis import strategies as st

from harness.examples import placed_job
from recycle.job import Job, Server, Stage
from recycle.plan.checker import check_plan
from recycle.plan.mode import Mode
from recycle.plan.timing import Deadlock
from recycle.planner.greedy.chunk_scheduler import POLICIES as CHUNK_POLICIES
from recycle.planner.greedy.chunk_scheduler import schedule_chunks
from recycle.planner.greedy.list_scheduler import POLICIES, list_schedule
from recycle.planner.greedy.pattern import busiest, pattern_of, sparing, spread
from recycle.planner.model.objective import value
from recycle.planner.model.problem import make_problem, one_pipeline
from tests.planner.greedy.test_chunk_scheduler import made
from tests.planner.legality import assert_legal
from tests.strategies import placed_problems, problems


@given(problems(), st.sampled_from(POLICIES))
def test_whoever_is_dead_a_plan_is_no_longer_than_its_pattern(problem, policy):
    places = busiest(problem)
    single = one_pipeline(problem, places)
    pattern = list_schedule(single, policy)
    programs = spread(problem, pattern, places)
    assert_legal(problem, programs)
    assert value(problem, programs) <= value(single, pattern)


@given(problems(), st.sampled_from(POLICIES), st.integers(1, 3))
def test_guests_that_are_left_over_keep_to_memory(problem, policy, fewer):
    places = max(problem.job.micro_batches, busiest(problem) - fewer)
    programs = spread(problem, list_schedule(one_pipeline(problem, places), policy), places)
    try:
        value(problem, programs)
    except Deadlock:
        assert all(problem.fits(server.stage, tasks) for server, tasks in programs.items())
    else:
        assert_legal(problem, programs)


@given(placed_problems(), st.sampled_from(CHUNK_POLICIES), st.integers(0, 3))
def test_with_several_chunks_plans_follow_patterns_too(problem, policy, fewer):
    most = busiest(problem)
    places = max(problem.job.micro_batches, most - fewer)
    single = sparing(problem, places)
    pattern = schedule_chunks(single, policy)
    programs = spread(problem, pattern, places)
    try:
        found = value(problem, programs)
    except Deadlock:
        assert places < most
        assert all(problem.fits(server.stage, tasks) for server, tasks in programs.items())
    else:
        assert not check_plan(made(problem, programs))
        assert places < most or found <= value(single, pattern)


def test_each_chunk_of_a_guest_that_is_left_over_is_on_another_server():
    problem = make_problem(placed_job("interleaved:2", 4, 2, 4, 16, optimizer=0), [Server(0, 1)], Mode())
    # Three servers have five places with four micro-batches of their own: three of the four guests find room.
    programs = spread(problem, schedule_chunks(one_pipeline(problem, 5), CHUNK_POLICIES[0]), 5)
    assert sorted(len(tasks) for server, tasks in programs.items() if server.stage == 1) == [30, 33, 33]


def test_the_pattern_of_a_plan_without_failures_is_its_first_pipeline():
    job = Job(3, 4, (Stage(1, 1, 1, 0, 0, 1, 0, 2),) * 2, (0,))
    problem = make_problem(job, (), Mode())
    pattern = list_schedule(one_pipeline(problem, 4))
    programs = spread(problem, pattern, 4)
    assert pattern_of(problem, programs) == pattern
    assert programs[Server(2, 1)] == [task + 2 * 4 * 3 for task in pattern[Server(0, 1)]]
