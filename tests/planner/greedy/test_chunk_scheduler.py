"""Plans for servers of several chunks, judged from their rows alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.examples import placed_job
from recycle.holding import with_own_layout
from recycle.job import Job, Server, Stage
from recycle.placement import parse_placement
from recycle.plan.checker import check_plan
from recycle.plan.mode import Mode
from recycle.plan.plan import Provenance
from recycle.planner.assemble import assemble
from recycle.planner.greedy.chunk_scheduler import POLICIES, schedule_chunks
from recycle.planner.model.bounds import lower_bound, period
from recycle.planner.model.lowering import instructions
from recycle.planner.model.problem import make_problem
from tests.planner.rows import judge
from tests.strategies import placed_problems


def made(problem, programs, form="compute"):
    provenance = Provenance("test", 0, "none", "work", "bounded")
    bound = period(problem, lower_bound(problem).value)
    return assemble(problem, instructions(problem, programs), form, bound, provenance)


@given(placed_problems(), st.sampled_from(POLICIES))
@settings(max_examples=80)
def test_every_plan_is_legal_and_worth_what_it_says(problem, policy):
    plan = made(problem, schedule_chunks(problem, policy))
    assert not check_plan(plan)
    assert judge(plan) == plan.period
    lowered = made(problem, schedule_chunks(problem, policy), "lowered")
    assert not check_plan(lowered)
    assert lowered.period <= plan.period


@given(placed_problems(pipelines=1), st.sampled_from(POLICIES))
@settings(max_examples=40)
def test_a_plan_of_one_pipeline_is_never_below_the_bound(problem, policy):
    assert made(problem, schedule_chunks(problem, policy)).period >= period(problem, lower_bound(problem).value)


@pytest.mark.parametrize("form", ["v-shaped", "interleaved:2", "interleaved:3"])
def test_memory_for_one_micro_batch_is_enough(form):
    chunks = len(parse_placement(form, 3)[0])
    problem = make_problem(placed_job(form, 1, 3, 4, chunks, 1, optimizer=0), (), Mode())
    for policy in POLICIES:
        assert not check_plan(made(problem, schedule_chunks(problem, policy)))


def test_who_may_be_ahead_locks_nobody_in_around_dead_servers():
    job = with_own_layout(placed_job("consecutive:2", pipelines=3, limit=3))
    problem = make_problem(job, (Server(1, 1),), Mode())
    for policy in POLICIES:
        assert not check_plan(made(problem, schedule_chunks(problem, policy)))


def test_a_v_loses_nothing_where_one_chunk_per_server_idles():
    problem = make_problem(placed_job("v-shaped", 1, 4, 8, 8, optimizer=0), (), Mode())
    values = [made(problem, schedule_chunks(problem, policy)).period for policy in POLICIES]
    # Six tasks of each of eight micro-batches on each server, and not one slot more.
    assert min(values) == 48
    alone = Stage(2, 2, 2, 0, 0, 2, 0, 8)
    standard = make_problem(Job(1, 8, (alone,) * 4, (0,) * 3), (), Mode())
    assert lower_bound(standard).value > 48
