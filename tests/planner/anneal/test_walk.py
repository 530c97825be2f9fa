from random import Random

from hypothesis import given
from hypothesis import strategies as st

from recycle.plan.checker import check_plan
from recycle.planner.anneal.walk import Walk
from recycle.planner.greedy.chunk_scheduler import POLICIES as CHUNK_POLICIES
from recycle.planner.greedy.chunk_scheduler import schedule_chunks
from recycle.planner.greedy.list_scheduler import POLICIES, list_schedule
from recycle.planner.model.objective import value
from tests.planner.greedy.test_chunk_scheduler import made
from tests.planner.legality import assert_legal
from tests.strategies import placed_problems, problems


@given(problems(), st.sampled_from(POLICIES), st.integers(0, 5), st.sampled_from([0.1, 1.0, 10.0]))
def test_every_step_leaves_a_legal_schedule(problem, policy, seed, temperature):
    programs = list_schedule(problem, policy)
    target = value(problem, programs) - 1
    walk = Walk(problem, programs, target, Random(seed))
    assert_legal(problem, walk.programs())
    for step in range(60):
        if not walk.energy:
            break
        walk.step(temperature)
        if step % 10 == 9:
            walk.tidy()
            assert_legal(problem, walk.programs())
    assert_legal(problem, walk.programs())
    assert walk.energy > 0 or value(problem, walk.programs()) <= target


@given(problems(), st.integers(0, 5))
def test_a_schedule_has_no_energy_at_its_own_value(problem, seed):
    programs = list_schedule(problem)
    walk = Walk(problem, programs, value(problem, programs), Random(seed))
    assert walk.energy == 0
    assert walk.programs() == programs


@given(placed_problems(pipelines=1), st.sampled_from(CHUNK_POLICIES), st.integers(0, 5))
def test_so_does_every_step_where_servers_of_a_pipeline_hold_several_chunks(problem, policy, seed):
    programs = schedule_chunks(problem, policy)
    worth = value(problem, programs)
    walk = Walk(problem, programs, worth, Random(seed))
    assert walk.energy == 0
    assert walk.programs() == programs
    walk = Walk(problem, programs, worth - 1, Random(seed))
    for _ in range(60):
        if not walk.energy:
            break
        walk.step(1.0)
    walk.tidy()
    assert not check_plan(made(problem, walk.programs()))
    assert walk.energy > 0 or value(problem, walk.programs()) < worth
