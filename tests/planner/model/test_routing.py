from collections import Counter

import msgspec
from hypothesis import given

from harness.examples import paper_job, plan_of
from recycle.job import Server
from recycle.plan.checker import check_plan
from recycle.plan.instruction import Op
from recycle.plan.mode import ROUTING_RULES, Mode, RoutingRule
from recycle.planner.anneal.improve import improve
from recycle.planner.exact.prove import solve
from recycle.planner.greedy.batches import schedule_large
from recycle.planner.greedy.list_scheduler import list_schedule
from recycle.planner.model.lowering import instructions
from recycle.planner.model.problem import make_problem
from recycle.planner.model.routing import balanced_routes, dealt_routes, movable
from recycle.planner.model.stopping import MaxMoves
from tests.planner.legality import assert_legal
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


def next_live(home, live):
    """A rule that is none of ours: home if it is alive, or else the next two live pipelines."""
    if home in live:
        return (home,)
    turned = sorted(live, key=lambda pipeline: (pipeline < home, pipeline))
    return tuple(sorted(turned[:2]))


def test_another_rule_needs_an_entry_in_the_table_and_nothing_else(monkeypatch):
    monkeypatch.setitem(ROUTING_RULES, "next", RoutingRule("to the next two", next_live))
    job = paper_job(pipelines=5, stages=3, micro_batches=3, limit=4)
    problem = make_problem(job, [Server(4, 1), Server(1, 2)], Mode(routing="next"))
    greedy = list_schedule(problem)
    for programs in (
        greedy,
        schedule_large(problem),
        improve(problem, [MaxMoves(2000)]).programs,
        solve(problem, seconds=60, hint=greedy).programs,
    ):
        assert_legal(problem, programs)
        plan = plan_of(problem.job, problem.dead, problem.mode, instructions(problem, programs))
        assert check_plan(plan) == ()
        assert {each.home for each in plan.programs[Server(2, 1)]} == {2}
        assert {each.home for each in plan.programs[Server(0, 1)] if each.op is Op.F} <= {0, 4}
    moved = dict(plan.programs)
    far = [each for server in (Server(2, 2), Server(3, 2)) for each in moved[server] if each.home == 1]
    for server in (Server(2, 2), Server(3, 2)):
        moved[server] = tuple(each for each in moved[server] if each.home != 1)
    moved[Server(0, 2)] += tuple(sorted(far, key=lambda each: "FIW".index(each.op.value)))
    (violation, *_) = check_plan(msgspec.structs.replace(plan, programs=moved))
    assert violation.rule == "routing"
    assert "belongs on W2_2 or W3_2" in violation.message
