"""What a plan says about itself that its instructions do not show: baseline, bound and status.

The baseline follows from the job, the status from period and bound. A bound is a claim about all plans: it is true
where the rules of ``bounds`` prove as much, false where they are named as its proof and prove less, or where a plan
below it is found; what only the exact solver has proved is not decided here.
"""

from collections.abc import Iterator

import msgspec

from recycle.plan.plan import SOLVER, Plan
from recycle.plan.violation import Violation
from recycle.planner.anneal.search import search
from recycle.planner.assemble import baseline_period
from recycle.planner.model.bounds import lower_bound, period
from recycle.planner.model.problem import make_problem
from recycle.planner.model.stopping import MaxMoves

MOVES = 2_000
"""Changes tried to find a plan below a bound that cannot be verified."""


class Claims(msgspec.Struct, frozen=True):
    """The result of judging them.

    Attributes:
        violations: the claims that are false.
        proven: the bound on the period that the rules prove.
        proof: the rule that does.
        verified: whether the plan's bound is known to be true.
    """

    violations: tuple[Violation, ...]
    proven: int
    proof: str
    verified: bool


def judge_claims(plan: Plan) -> Claims:
    """Judge what a legal plan says of itself.

    Raises:
        JobError: the job is too large to be planned.
    """
    problem = make_problem(plan.job, plan.dead, plan.mode)
    bound = lower_bound(problem)
    proven = period(problem, bound.value)
    verified = plan.bound <= proven
    violations = [*_figures(plan)]
    if not verified and plan.provenance.bound_by != SOLVER:
        message = f"the plan says that {plan.provenance.bound_by} proves {plan.bound}, and the rules prove {proven}"
        violations.append(Violation("claims", message))
    elif not verified:
        found = period(problem, search(problem, [MaxMoves(MOVES)]).progress.value)
        if found < plan.bound:
            message = f"the plan says that no period is below {plan.bound}, and there is a plan of {found}"
            violations.append(Violation("claims", message))
    return Claims(tuple(violations), proven, bound.proof, verified)


def _figures(plan: Plan) -> Iterator[Violation]:
    baseline = baseline_period(plan.job)
    if plan.baseline != baseline:
        yield Violation("claims", f"the plan says baseline {plan.baseline}, and fault-free 1F1B takes {baseline}")
    status = "optimal" if plan.period == plan.bound else "bounded"
    if plan.provenance.status != status:
        message = f"the plan says status {plan.provenance.status}, and period {plan.period} over bound {plan.bound} is"
        yield Violation("claims", f"{message} {status}")
