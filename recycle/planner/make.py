"""Making a plan: from a job and its dead servers to instruction lists, with the bound they are measured against."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from recycle.errors import JobError, PlanningFailed
from recycle.job import Job, Server
from recycle.plan.checker import check_plan
from recycle.plan.clock import Clock, run_clock
from recycle.plan.mode import Mode
from recycle.plan.plan import SOLVER, Form, Plan, Provenance
from recycle.planner.anneal.improve import LARGE
from recycle.planner.anneal.search import search
from recycle.planner.assemble import assemble_timed
from recycle.planner.greedy.pattern import pattern_of, spread
from recycle.planner.model.bounds import lower_bound, period
from recycle.planner.model.lowering import instructions
from recycle.planner.model.problem import Problem, Programs, make_problem, one_pipeline
from recycle.planner.model.stopping import StoppingCriterion
from recycle.version import __version__

Watch = Callable[[int, int], None]


SOON = 20_000
"""Tasks of which a plan is put together within the second in which Ctrl-C has to end a command."""


class Effort(msgspec.Struct, frozen=True):
    """How hard to search.

    Attributes:
        stops: when the improvement search ends; it ends by itself at the bound.
        budget: the same in words, for the plan's provenance.
        seed: of the random choices.
        proof: seconds for the exact solver, 0 to do without.
        until_interrupted: whether Ctrl-C ends the search alone, and what was found is the plan.
    """

    stops: Sequence[StoppingCriterion]
    budget: str
    seed: int = 0
    proof: float = 0.0
    until_interrupted: bool = False


def make_plan(
    job: Job,
    dead: Iterable[Server],
    mode: Mode,
    effort: Effort,
    form: Form = "lowered",
    watch: Watch | None = None,
) -> Plan:
    """Plan a job around its dead servers.

    Args:
        job: what is trained.
        dead: the servers that are dead.
        mode: what the plan may do.
        effort: how hard to search.
        form: whether transfers, reductions and optimizer steps are added.
        watch: called with (period, bound) whenever one of them gets better.

    Raises:
        JobError: a dead server is none of the job's, or the job is too large, for a plan or for the proof.
        NoPlanError: a stage has no live server.
        PlanningFailed: what was found is no legal plan, by a mistake of the planner's.
    """
    problem = make_problem(job, dead, mode)
    if effort.proof:
        _require_provable(problem)
    # A global optimizer is searched by its makespan, and reported by its period.
    report = None if watch is None else lambda value, bound: watch(period(problem, value), period(problem, bound))
    clock, least, bound_by, planner = _search(problem, effort, report)
    provenance = Provenance(f"recycle {__version__} {planner}", effort.seed, effort.budget, bound_by, "bounded")
    plan = assemble_timed(problem, clock, form, period(problem, least), provenance)
    if problem.tasks <= LARGE:
        _require_legal(plan)
    return plan


def _require_legal(plan: Plan) -> None:
    """Refuse a plan of our own that is not legal, or better than its bound, so that nobody trains by it."""
    for violation in check_plan(plan):
        dead = f" around {', '.join(map(str, plan.dead))}" if plan.dead else ""
        raise PlanningFailed(
            f"the planner's plan{dead} is not legal: {violation.message}; report it, with the job; another seed or "
            "budget may give another plan"
        )


def _search(problem: Problem, effort: Effort, watch: Watch | None) -> tuple[Clock, int, str, str]:
    """Timed instructions, the bound on their value, what proved it, and what made them."""
    analytic = lower_bound(problem)
    found = search(problem, effort.stops, effort.seed, watch)
    if found.interrupted and not (effort.until_interrupted and problem.tasks <= SOON):
        raise KeyboardInterrupt
    value = found.progress.value
    if value == analytic.value or not effort.proof or found.interrupted:
        clock = found.clock or _timed(problem, found.programs)
        return clock, analytic.value, analytic.proof, "list scheduler and annealing"
    from recycle.planner.exact.prove import solve

    micro_batches = problem.job.micro_batches
    exact = solve(
        one_pipeline(problem, micro_batches) if problem.alike else problem,
        seconds=effort.proof,
        hint=pattern_of(problem, found.programs) if problem.alike else found.programs,
        seed=effort.seed,
        on_improve=None if watch is None else lambda value, bound, _: watch(value, bound),
    )
    bound_by = SOLVER if exact.bound > analytic.value else analytic.proof
    programs = spread(problem, exact.programs, micro_batches) if problem.alike else exact.programs
    return _timed(problem, programs), exact.bound, bound_by, SOLVER


def _timed(problem: Problem, programs: Programs) -> Clock:
    return run_clock(problem.job, problem.mode, instructions(problem, programs))


def _require_provable(problem: Problem) -> None:
    problem.job.require_even("a proof")
    if problem.tasks > LARGE and not problem.alike:
        raise JobError(
            f"a proof for {problem.tasks} tasks: the exact solver is made for some thousand, and takes {LARGE} at most "
            "where pipelines differ; leave --prove out"
        )
