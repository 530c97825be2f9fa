import pytest
from hypothesis import given

from harness.examples import paper_job
from recycle.errors import NoPlanError
from recycle.job import Server
from recycle.plan.mode import Mode
from recycle.planner.problem import make_problem
from recycle.planner.routing import balanced_routes, movable
from tests.strategies import problems


@given(problems())
def test_loads_are_balanced_and_healthy_micro_batches_stay_at_home(problem):
    micro_batches = problem.job.micro_batches
    for stage, route in enumerate(balanced_routes(problem)):
        loads = [list(route).count(pipeline) for pipeline in problem.live[stage]]
        assert sum(loads) == problem.total
        assert max(loads) - min(loads) <= 1
        for unit, pipeline in enumerate(route):
            assert pipeline == unit // micro_batches or unit // micro_batches not in problem.live[stage]


def test_a_stage_without_live_server_has_no_routes():
    failed = [Server(pipeline, 2) for pipeline in range(3)]
    with pytest.raises(NoPlanError, match="stage 2"):
        balanced_routes(make_problem(paper_job(), failed, Mode()))


def test_what_may_be_executed_elsewhere():
    job = paper_job()
    home = make_problem(job, [Server(1, 2)], Mode())
    free = make_problem(job, [Server(1, 2)], Mode(routing="free"))
    alone = make_problem(job, [Server(1, 2), Server(0, 2)], Mode(routing="free"))
    assert movable(home, 1) == []
    assert movable(home, 2) == [6, 7, 8, 9, 10, 11]
    assert movable(free, 1) == list(range(18))
    assert movable(alone, 2) == []
