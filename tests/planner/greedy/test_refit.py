import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.examples import placed_job
from recycle.job import Job, Server, Stage
from recycle.plan.checker import check_plan
from recycle.plan.mode import Mode
from recycle.planner.anneal.improve import improve
from recycle.planner.greedy.chunk_scheduler import POLICIES, schedule_chunks
from recycle.planner.greedy.chunked import chunk_schedules
from recycle.planner.greedy.refit import refit
from recycle.planner.model.bounds import lower_bound
from recycle.planner.model.objective import value
from recycle.planner.model.problem import make_problem
from recycle.planner.model.stopping import MaxMoves
from recycle.planner.source import MOVES_BEFORE
from tests.planner.anneal.test_improve import Reached
from tests.planner.greedy.test_chunk_scheduler import made
from tests.strategies import placed_problems


def v_problem(servers, micro_batches, limit, costs=(10, 12, 7), latency=0):
    return make_problem(placed_job("v-shaped", 1, servers, micro_batches, limit, latency, costs, 0), (), Mode())


@given(placed_problems(), st.sampled_from(POLICIES), st.sampled_from([0, 20, 1 << 60]))
@settings(max_examples=60)
def test_f_and_i_keep_their_order_and_the_plan_stays_legal(problem, policy, target):
    assume(problem.kinds == 3)
    before = schedule_chunks(problem, policy)
    after = refit(problem, before, target)
    assert not check_plan(made(problem, after))
    for server, tasks in before.items():
        assert [task for task in after[server] if task % 3 < 2] == [task for task in tasks if task % 3 < 2]


@given(placed_problems(pipelines=2, micro_batches=3))
@settings(max_examples=15)
def test_every_schedule_made_in_one_go_is_legal(problem):
    for programs in chunk_schedules(problem):
        assert not check_plan(made(problem, programs))


def test_a_server_waits_only_as_long_as_it_can_still_keep_the_target():
    # After its first I the first server waits 5 for the second one, and a W takes 7.
    stages = (Stage(2, 2, 7, 0, 0, 1, 0, 2), Stage(1, 6, 0, 0, 0, 1, 0, 2))
    problem = make_problem(Job(1, 2, stages, (0,)), (), Mode())
    programs = {Server(0, 0): [0, 3, 1, 2, 4, 5], Server(0, 1): [0, 1, 2, 3, 4, 5]}
    eager, patient = (refit(problem, programs, target)[Server(0, 0)] for target in (0, 1 << 60))
    assert eager == [0, 3, 1, 2, 4, 5]
    assert patient == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize(
    ("servers", "micro_batches", "whole_stages", "costs", "latency", "public"),
    [
        (4, 4, 4, (10, 12, 7), 1, 271),
        (4, 4, 8, (10, 12, 7), 1, 271),
        (8, 8, 12, (10, 12, 7), 0, 535),
        (4, 8, 4, (10, 12, 7), 0, 487),
        (4, 8, 4, (10, 12, 7), 1, 505),
        (6, 14, 6, (1, 1, 1), 0, 84),
        (6, 14, 6, (10, 12, 7), 0, 855),
        (8, 16, 8, (1, 1, 1), 1, 137),
        (8, 16, 8, (10, 12, 7), 1, 1031),
        (16, 16, 16, (10, 12, 7), 0, 1080),
        pytest.param(16, 16, 24, (10, 12, 7), 0, 1080, marks=pytest.mark.long),
    ],
)
def test_no_plan_is_behind_the_best_public_scheduler(servers, micro_batches, whole_stages, costs, latency, public):
    """What the greedy V scheduler of Qi et al.'s published code reaches, measured by the same clock."""
    problem = v_problem(servers, micro_batches, 2 * whole_stages, costs, latency)
    found = improve(problem, [Reached(public), MaxMoves(MOVES_BEFORE)]).progress
    assert found.bound <= found.value <= public


def test_even_costs_lose_nothing_at_the_usual_memory():
    problem = v_problem(8, 16, 16, (1, 1, 1))
    first = next(iter(chunk_schedules(problem)))
    assert value(problem, first) == lower_bound(problem).value == 96
    heavier = msgspec.structs.replace(problem.job.stages[-1], forward=2, input_gradient=2, weight_gradient=2)
    job = msgspec.structs.replace(problem.job, stages=(*problem.job.stages[:-1], heavier))
    uneven = make_problem(job, (), Mode())
    assert min(value(uneven, each) for each in chunk_schedules(uneven)) < 1.1 * lower_bound(uneven).value
