import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.examples import placed_job
from recycle.job import Stage
from recycle.placement import parse_placement
from recycle.plan.checker import check_plan
from recycle.plan.mode import Mode
from recycle.planner.greedy.chunked import is_v_shaped, round_schedules
from recycle.planner.model.bounds import lower_bound
from recycle.planner.model.evaluate import value
from recycle.planner.model.problem import make_problem
from tests.planner.greedy.test_chunk_scheduler import made
from tests.planner.rows import judge


def v_job(servers, micro_batches, limit, costs=(10, 12, 7)):
    return placed_job("v-shaped", 1, servers, micro_batches, limit, costs=costs, optimizer=0)


@st.composite
def uneven_v_jobs(draw):
    job = v_job(draw(st.integers(2, 4)), draw(st.integers(1, 6)), draw(st.integers(2, 24)))
    held = [draw(st.integers(1, 2)) for _ in job.stages]
    stages = [
        Stage(*(draw(st.integers(0, 3)) for _ in range(5)), each, draw(st.integers(0, each)), max(4, job.limit(0)))
        for each in held
    ]
    latency = tuple(draw(st.integers(0, 2)) for _ in job.latency)
    return msgspec.structs.replace(job, stages=tuple(stages), latency=latency)


@given(uneven_v_jobs())
@settings(max_examples=60)
def test_every_schedule_is_whole_legal_and_worth_what_it_says(job):
    problem = make_problem(job, (), Mode())
    for programs in round_schedules(problem):
        plan = made(problem, programs)
        assert not check_plan(plan)
        assert judge(plan) == plan.period


@pytest.mark.parametrize("micro_batches", [1, 3, 8, 16])
def test_memory_for_whole_pipelines_is_enough_and_less_is_no_error(micro_batches):
    problem = make_problem(v_job(4, micro_batches, 8), (), Mode())
    assert len(list(round_schedules(problem))) >= 4
    assert not list(round_schedules(make_problem(v_job(4, 8, 2), (), Mode())))


def test_even_costs_lose_nothing():
    problem = make_problem(v_job(4, 12, 8, (1, 1, 1)), (), Mode())
    assert min(value(problem, programs) for programs in round_schedules(problem)) == lower_bound(problem).value == 72


def test_only_one_whole_v_has_rounds():
    job = v_job(3, 4, 6)
    assert is_v_shaped(make_problem(job, (), Mode()))
    assert not is_v_shaped(make_problem(job, (), Mode("fused")))
    assert not is_v_shaped(make_problem(msgspec.structs.replace(job, pipelines=2), (), Mode()))
    turned = msgspec.structs.replace(job, placement=parse_placement("interleaved:2", 3))
    assert not is_v_shaped(make_problem(turned, (), Mode()))
