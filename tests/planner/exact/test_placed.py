"""The solver's model of several chunks per server: it agrees with that of one, with the bounds, and with the clock."""

from hypothesis import given
from hypothesis import strategies as st

from harness.examples import QUICK, placed_job
from recycle.job import Server
from recycle.plan.checker import check_plan
from recycle.plan.mode import Mode
from recycle.planner.exact.prove import solve
from recycle.planner.greedy.chunk_scheduler import POLICIES, schedule_chunks
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.bounds import lower_bound
from recycle.planner.model.objective import value
from recycle.planner.model.problem import make_problem
from tests.planner.exact.test_prove import SLOW
from tests.planner.exact.test_prove import answer as answer_of
from tests.strategies import placed_problems, problems


def answer(problem, target):
    from recycle.planner.exact.placed import PlacedModel

    return answer_of(PlacedModel, problem, target)


@given(problems(pipelines=2, depth=3, micro_batches=2))
@SLOW
def test_with_one_chunk_per_server_it_says_what_the_other_model_does(problem):
    best = solve(problem, seconds=20)
    assert answer(problem, best.value) != "no"
    assert answer(problem, best.bound - 1) != "yes"


@given(placed_problems(pipelines=2, servers=2, chunks=4, micro_batches=2), st.sampled_from(POLICIES))
@SLOW
def test_it_excludes_no_plan_that_the_clock_times_and_finds_none_below_a_bound(problem, policy):
    assert answer(problem, value(problem, schedule_chunks(problem, policy))) != "no"
    assert answer(problem, lower_bound(problem).value - 1) != "yes"


@given(placed_problems(pipelines=2, servers=2, chunks=4, micro_batches=2))
@SLOW
def test_what_it_finds_is_worth_what_it_says(problem):
    hint = schedule_chunks(problem, POLICIES[0])
    result = solve(problem, seconds=3, hint=hint)
    assert result.bound <= result.value <= value(problem, hint)
    assert value(problem, result.programs) == result.value
    assert all(problem.fits(server.stage, tasks) for server, tasks in result.programs.items())


def test_it_takes_memory_for_far_more_than_all_micro_batches():
    problem = make_problem(placed_job("v-shaped", micro_batches=2, limit=10_000), [Server(0, 0)], Mode())
    assert answer(problem, value(problem, schedule_chunks(problem, POLICIES[0]))) == "yes"


def test_a_proof_finds_a_plan_that_the_greedy_rules_do_not():
    job, mode = placed_job("interleaved:2", micro_batches=3, latency=1), Mode("fused", "global")
    quick = make_plan(job, [Server(0, 1)], mode, QUICK)
    plan = make_plan(job, [Server(0, 1)], mode, Effort(QUICK.stops, QUICK.budget, proof=60))
    assert quick.bound <= plan.bound == plan.period < quick.period
    assert not check_plan(plan)
