"""The exact solver reaches and proves what is known, and its proofs are no artefact of its symmetry orders."""

import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings

from harness.examples import paper_job
from recycle.job import Job, Server, Stage
from recycle.plan.mode import Mode
from recycle.planner.anneal.improve import improve
from recycle.planner.exact.prove import solve
from recycle.planner.greedy.list_scheduler import list_schedule
from recycle.planner.model.bounds import lower_bound
from recycle.planner.model.objective import value
from recycle.planner.model.problem import make_problem
from recycle.planner.model.stopping import MaxMoves
from tests.planner.legality import assert_legal
from tests.planner.test_table import STAGGERED
from tests.strategies import problems

cp_model = pytest.importorskip("ortools.sat.python.cp_model")

SMALL = {"pipelines": 3, "depth": 3, "micro_batches": 3}
SLOW = settings(max_examples=25, suppress_health_check=list(HealthCheck))


def uneven_job(limit, released, costs=(10, 12, 7), last=(0, 0, 0), latency=0):
    stages = [Stage(*costs, 30, 0, 2, released, 2 * limit)] * 3
    stages.append(Stage(*(cost + more for cost, more in zip(costs, last, strict=True)), 30, 0, 2, released, 2 * limit))
    return Job(pipelines=3, micro_batches=6, stages=tuple(stages), latency=(latency,) * 3)


def answer(build, problem, target):
    """Whether a model has a solution within a target value: yes, no, or unknown."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = 1
    status = solver.solve(build(problem, 0, target).model)
    return {cp_model.INFEASIBLE: "no", cp_model.OPTIMAL: "yes", cp_model.FEASIBLE: "yes"}.get(status, "unknown")


@pytest.mark.parametrize(
    ("job", "failed", "mode", "rules", "expected"),
    [
        (paper_job(limit=4, released=0), "W1_2", STAGGERED, 31, 32),
        (paper_job(limit=4, released=0), "W1_2", Mode(routing="free"), 31, 32),
        (uneven_job(4, 2, last=(4, 5, 3)), "W1_2", STAGGERED, 292, 301),
        (uneven_job(4, 0), "W1_2", Mode("fused", "global"), 319, 319),
    ],
)
def test_proofs_beyond_the_rules(job, failed, mode, rules, expected):
    problem = make_problem(job, [Server.parse(failed)], mode)
    assert lower_bound(problem).value == rules
    result = solve(problem, seconds=60)
    assert_legal(problem, result.programs)
    assert (result.value, result.status) == (expected, "optimal")


@SLOW
@given(problems(**SMALL))
def test_results_are_legal_and_between_bound_and_hint(problem):
    hint = list_schedule(problem)
    result = solve(problem, seconds=1, hint=hint)
    assert_legal(problem, result.programs)
    assert lower_bound(problem).value <= result.bound <= result.value == value(problem, result.programs)
    assert result.value <= value(problem, hint)
    assert (result.status == "optimal") == (result.bound == result.value)


@SLOW
@given(problems(**SMALL))
def test_no_model_excludes_the_value_of_a_legal_schedule(problem):
    from recycle.planner.exact.relaxed import pool_peers, pool_stages
    from recycle.planner.exact.servers import ServerModel

    reached = value(problem, improve(problem, [MaxMoves(500)]).programs)
    builds = [ServerModel, pool_stages] + ([pool_peers] if problem.mode.keeps_home else [])
    for build in builds:
        assert answer(build, problem, reached) != "no"


@pytest.mark.long
@SLOW
@given(problems(**SMALL))
def test_symmetry_orders_do_not_change_the_optimum(problem):
    from recycle.planner.exact.servers import ServerModel

    class Unordered(ServerModel):
        def _add_order(self):
            pass

        def _number_servers(self):
            pass

    result = solve(problem, seconds=1)
    if result.status == "optimal" and result.value > 0:
        assert answer(Unordered, problem, result.value - 1) != "yes"


@pytest.mark.parametrize(("time_scale", "memory_scale"), [(1, 12_345_678_901), (10, 7)])
def test_large_numbers_do_not_change_the_answer(time_scale, memory_scale):
    stages = [Stage(*[time_scale] * 3, 3 * time_scale, 0, 2 * memory_scale, memory_scale, 8 * memory_scale + 1)] * 4
    problem = make_problem(Job(3, 6, tuple(stages), (0, 0, 0)), [Server(1, 0)], STAGGERED)
    result = solve(problem, seconds=60)
    assert (result.value, result.status) == (33 * time_scale, "optimal")


def test_numbers_beyond_the_solver_are_left_alone():
    stages = [Stage(*[10**12] * 3, 3, 0, 1, 0, 4)] * 4
    problem = make_problem(Job(3, 6, tuple(stages), (0, 0, 0)), [Server(1, 0)], STAGGERED)
    result = solve(problem, seconds=60)
    assert result.bound == lower_bound(problem).value
    assert_legal(problem, result.programs)


@pytest.mark.parametrize("routing", ["home", "free"])
def test_a_large_model_grows_with_the_micro_batches_and_not_with_their_pairs(routing):
    from recycle.planner.exact.servers import ServerModel

    def size(micro_batches):
        job = paper_job(pipelines=3, stages=1, micro_batches=micro_batches)
        problem = make_problem(job, [Server(1, 0)], Mode(routing=routing))
        return len(str(ServerModel(problem, 0, 10**5).model.proto))

    assert size(300) < 2.2 * size(150)


@pytest.mark.parametrize("seed", [2**31 - 1, 10**18 - 1, -(2**40)])
def test_a_seed_beyond_the_solver_is_a_seed(seed):
    problem = make_problem(paper_job(released=0), [Server(1, 0)], STAGGERED)
    assert lower_bound(problem).value < value(problem, list_schedule(problem))
    result = solve(problem, seconds=1, seed=seed)
    assert_legal(problem, result.programs)


def test_improvements_are_reported_as_they_come():
    problem = make_problem(paper_job(released=0), [Server(1, 0)], STAGGERED)
    reports = []
    result = solve(
        problem, seconds=30, on_improve=lambda reached, bound, programs: reports.append((reached, bound, programs))
    )
    assert reports[-1] == (result.value, result.bound, result.programs)


def test_without_time_the_hint_comes_back():
    problem = make_problem(uneven_job(4, 0), [Server(1, 1)], STAGGERED)
    hint = list_schedule(problem)
    result = solve(problem, seconds=0, hint=hint)
    assert (result.programs, result.status) == (hint, "bounded")
    assert result.bound == lower_bound(problem).value


def test_an_interrupt_returns_the_best_so_far():
    script = """
import os, signal, threading, time
from recycle.job import Server
from recycle.plan.mode import Mode
from recycle.planner.exact.prove import solve
from recycle.planner.model.problem import make_problem
from tests.planner.exact.test_prove import uneven_job

problem = make_problem(uneven_job(4, 0), [Server(1, 2)], Mode("split", "global"))
threading.Timer(4.0, os.kill, (os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
result = solve(problem, seconds=60)
assert time.monotonic() - began < 30, "the interrupt was ignored"
assert result.status == "bounded" and result.programs
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=90)
