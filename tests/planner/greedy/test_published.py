import pytest

from harness.examples import paper_job
from recycle.plan.checker import check_plan
from recycle.plan.clock import run_clock
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan, Provenance
from recycle.planner.greedy.published import one_forward_one_backward, zero_bubble_orders
from recycle.planner.model.bounds import lower_bound
from recycle.planner.model.evaluate import value
from recycle.planner.model.lowering import instructions
from recycle.planner.model.problem import make_problem


def legal(problem, programs):
    lists = instructions(problem, programs)
    clock = run_clock(problem.job, problem.mode, lists)
    provenance = Provenance("test", 0, "", "", "bounded")
    programs = {server: tuple(program) for server, program in lists.items()}
    figures = (clock.makespan, clock.period, 0, 0)
    return (
        check_plan(Plan(problem.job, problem.dead, {}, problem.mode, "compute", *figures, provenance, programs)) == ()
    )


@pytest.mark.parametrize("mode", [Mode("fused", "global"), Mode("split", "staggered")])
@pytest.mark.parametrize("limit", [1, 2, 4, (4, 3, 2, 1), (2, 4, 1, 3)])
def test_one_forward_one_backward_is_legal_under_any_limit(mode, limit):
    problem = make_problem(paper_job(limit=limit), (), mode)
    assert legal(problem, one_forward_one_backward(problem))


@pytest.mark.parametrize("limit", [2, 4, 8])
@pytest.mark.parametrize("micro_batches", [1, 2, 16])
def test_zero_bubble_orders_are_legal_where_memory_allows_them(limit, micro_batches):
    problem = make_problem(paper_job(limit=limit, released=0, micro_batches=micro_batches), (), Mode())
    for programs in zero_bubble_orders(problem):
        assert legal(problem, programs)


@pytest.mark.parametrize("limit", [4, 8])
def test_zero_bubble_orders_beat_one_forward_one_backward(limit):
    problem = make_problem(paper_job(limit=limit, released=0, micro_batches=16), (), Mode())
    best = min(value(problem, programs) for programs in zero_bubble_orders(problem))
    assert lower_bound(problem).value <= best < value(problem, one_forward_one_backward(problem))


def test_memory_for_one_forward_only_allows_no_zero_bubble_order():
    assert list(zero_bubble_orders(make_problem(paper_job(limit=1), (), Mode()))) == []
