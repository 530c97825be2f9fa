import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.examples import paper_job
from recycle.plan.mode import Mode
from recycle.planner.greedy.list_scheduler import POLICIES, list_schedule
from recycle.planner.model.bounds import lower_bound
from recycle.planner.model.objective import value
from recycle.planner.model.problem import make_problem
from tests.planner.legality import assert_legal
from tests.strategies import problems


@given(problems(), st.sampled_from(POLICIES))
def test_every_policy_is_legal_and_not_below_the_bound(problem, policy):
    programs = list_schedule(problem, policy)
    assert_legal(problem, programs)
    assert value(problem, programs) >= lower_bound(problem).value


@pytest.mark.parametrize("released", [0, 1])
@pytest.mark.parametrize("share", [1, 1.5, 2])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (3, 6), (4, 8), (8, 8), (8, 20), (16, 32)])
def test_fault_free_pipelines_of_equal_costs_meet_the_bound(stages, micro_batches, share, released):
    job = paper_job(int(share * stages), released, pipelines=1, stages=stages, micro_batches=micro_batches)
    problem = make_problem(job, (), Mode())
    assert min(value(problem, list_schedule(problem, policy)) for policy in POLICIES) == lower_bound(problem).value
