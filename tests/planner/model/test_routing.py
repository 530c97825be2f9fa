from collections import Counter

import msgspec
from hypothesis import given

from harness.examples import paper_job, plan_of
from recycle.job import Server
from recycle.plan.checker import check_plan
from recycle.plan.mode import Mode
from recycle.planner.greedy.list_scheduler import list_schedule
from recycle.planner.model.lowering import instructions
from recycle.planner.model.problem import make_problem
from recycle.planner.model.routing import balanced_routes, dealt_routes, movable
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


@given(problems(pipelines=6))
def test_dealt_routes_stay_at_home_or_are_balanced(problem):
    micro_batches = problem.job.micro_batches
    for live, route in zip(problem.live, dealt_routes(problem), strict=True):
        assert len(route) == problem.total
        assert all(host == unit // micro_batches for unit, host in enumerate(route) if unit // micro_batches in live)
        loads = Counter(route)
        assert set(loads) == set(live)
        assert max(loads.values()) == -(-problem.total // len(live))


def test_what_may_be_executed_elsewhere():
    job = paper_job()
    home = make_problem(job, [Server(1, 2)], Mode())
    free = make_problem(job, [Server(1, 2)], Mode(routing="free"))
    alone = make_problem(job, [Server(1, 2), Server(0, 2)], Mode(routing="free"))
    assert movable(home, 1) == {}
    assert movable(home, 2) == dict.fromkeys(range(6, 12), (0, 2))
    assert movable(free, 1) == dict.fromkeys(range(18), (0, 1, 2))
    assert movable(alone, 2) == {}


def test_work_away_from_where_it_belongs_is_named():
    problem = make_problem(paper_job(pipelines=5, stages=3, micro_batches=3, limit=4), [Server(1, 2)], Mode())
    plan = plan_of(problem.job, problem.dead, problem.mode, instructions(problem, list_schedule(problem)))
    moved = dict(plan.programs)
    away = [each for each in moved[Server(2, 1)] if each.micro_batch == 0]
    moved[Server(2, 1)] = tuple(each for each in moved[Server(2, 1)] if each.micro_batch)
    moved[Server(0, 1)] += tuple(sorted(away, key=lambda each: "FIW".index(each.op.value)))
    (violation, *_) = check_plan(msgspec.structs.replace(plan, programs=moved))
    assert violation.rule == "routing"
    assert violation.message == "1F2.0 is away from home: W2_1 is alive and the routing is 'home'"


def test_micro_batches_of_one_home_are_interchangeable_and_of_all_where_any_may_move():
    job = paper_job(pipelines=2, micro_batches=3)
    assert make_problem(job, (), Mode()).groups == [range(3), range(3, 6)]
    assert make_problem(job, (), Mode(routing="free")).groups == [range(6)]
