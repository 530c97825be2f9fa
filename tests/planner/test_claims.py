import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.examples import paper_job, paper_plan
from recycle.job import Server
from recycle.plan.mode import Mode
from recycle.plan.plan import SOLVER
from recycle.planner.claims import judge_claims
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves

PLAN = paper_plan()
GLOBAL = make_plan(paper_job(), (Server(1, 2),), Mode("split", "global"), Effort((MaxMoves(20_000),), "20000 moves"))


def claiming(plan, bound, bound_by, status):
    provenance = msgspec.structs.replace(plan.provenance, bound_by=bound_by, status=status)
    return msgspec.structs.replace(plan, bound=bound, provenance=provenance)


@pytest.mark.parametrize("plan", [PLAN, GLOBAL])
def test_what_the_planner_says_of_its_plans_is_true(plan):
    claims = judge_claims(plan)
    assert (claims.violations, claims.proven, claims.verified) == ((), plan.bound, True)
    assert claims.proof == plan.provenance.bound_by


@given(st.integers(0, 10**6))
def test_a_wrong_baseline_is_found(baseline):
    violations = judge_claims(msgspec.structs.replace(PLAN, baseline=baseline)).violations
    if baseline == PLAN.baseline:
        assert violations == ()
    else:
        [violation] = violations
        assert violation.message == f"the plan says baseline {baseline}, and fault-free 1F1B takes {PLAN.baseline}"


def test_a_wrong_status_is_found():
    [violation] = judge_claims(claiming(PLAN, PLAN.bound, PLAN.provenance.bound_by, "bounded")).violations
    assert "says status bounded" in violation.message
    [violation] = judge_claims(claiming(PLAN, PLAN.bound - 1, PLAN.provenance.bound_by, "optimal")).violations
    assert "says status optimal" in violation.message


def test_a_weak_bound_is_true():
    claims = judge_claims(claiming(PLAN, PLAN.bound - 1, PLAN.provenance.bound_by, "bounded"))
    assert (claims.violations, claims.verified, claims.proven) == ((), True, PLAN.bound)


# The rules prove 27 here; no plan is below 28, which the exact solver proves.
HARD = paper_plan(failed=[Server(0, 0)], stages=3, micro_batches=4, limit=2, released=0)


def test_no_rule_is_believed_to_prove_what_it_does_not():
    assert HARD.period > HARD.bound
    [violation] = judge_claims(claiming(HARD, HARD.period, HARD.provenance.bound_by, "optimal")).violations
    assert f"proves {HARD.period}, and the rules prove {HARD.bound}" in violation.message


def test_a_bound_of_the_solver_is_not_verified():
    claims = judge_claims(claiming(HARD, HARD.bound + 1, SOLVER, "optimal"))
    assert (claims.violations, claims.verified, claims.proven) == ((), False, HARD.bound)


def test_a_bound_of_the_solver_is_refuted_by_a_plan_below_it():
    slow = msgspec.structs.replace(HARD, period=HARD.period + 10)
    [violation] = judge_claims(claiming(slow, slow.period, SOLVER, "optimal")).violations
    assert f"no period is below {slow.period}, and there is a plan of {HARD.period}" in violation.message
