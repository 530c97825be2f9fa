import pytest

from harness.examples import paper_job, plan_of
from recycle.plan.checker import check_plan
from recycle.plan.mode import Mode
from recycle.planner.assemble import one_forward_one_backward
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.lowering import instructions
from recycle.planner.model.problem import make_problem
from recycle.planner.model.stopping import MaxMoves


@pytest.mark.parametrize("mode", [Mode("fused", "global"), Mode("split", "staggered")])
@pytest.mark.parametrize("limit", [1, 2, 4, (4, 3, 2, 1), (2, 4, 1, 3)])
def test_one_forward_one_backward_is_legal_under_any_limit(mode, limit):
    problem = make_problem(paper_job(limit=limit), (), mode)
    programs = instructions(problem, one_forward_one_backward(problem))
    assert check_plan(plan_of(problem.job, (), mode, programs)) == ()


@pytest.mark.parametrize("micro_batches", [4, 6, 16])
def test_the_planner_makes_one_forward_one_backward_under_its_limits(micro_batches):
    """What ``docs/reference/show.md`` says of comparing with it."""
    problem = make_problem(paper_job(limit=(4, 3, 2, 1), micro_batches=micro_batches), (), Mode("fused", "global"))
    made = make_plan(problem.job, (), problem.mode, Effort((MaxMoves(200),), "200 moves"), "compute")
    expected = instructions(problem, one_forward_one_backward(problem))
    assert made.programs == {server: tuple(program) for server, program in expected.items()}
