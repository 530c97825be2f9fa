"""Making a plan: from a job and its failed servers to instruction lists, with the bound they are measured against."""

from collections.abc import Callable, Collection, Sequence
from typing import Literal

import msgspec

from recycle import __version__
from recycle.errors import NoPlanError
from recycle.job import Job, Server
from recycle.plan.clock import run_clock
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan, Provenance
from recycle.planner.anneal.improve import StoppingCriterion, improve
from recycle.planner.bounds import lower_bound, period
from recycle.planner.evaluate import timing
from recycle.planner.greedy.batches import schedule_large
from recycle.planner.greedy.published import fault_free_problem, one_forward_one_backward
from recycle.planner.lowering import add_transfers, add_updates, fuse, instructions
from recycle.planner.problem import Problem, Programs, make_problem

Watch = Callable[[int, int], None]
Form = Literal["compute", "lowered"]

LARGE = 30_000
"""Tasks beyond which a pass of the improvement search takes too long to gain anything within seconds."""


class Effort(msgspec.Struct, frozen=True):
    """How hard to search.

    Attributes:
        stops: when the improvement search ends; it ends by itself at the bound.
        budget: the same in words, for the plan's provenance.
        seed: of the random choices.
        proof: seconds for the exact solver, 0 to do without.
    """

    stops: Sequence[StoppingCriterion]
    budget: str
    seed: int = 0
    proof: float = 0.0


def make_plan(
    job: Job,
    failed: Collection[Server],
    mode: Mode,
    effort: Effort,
    form: Form = "lowered",
    watch: Watch | None = None,
) -> Plan:
    """Plan a job around its failed servers.

    Args:
        job: what is trained.
        failed: the servers that are dead.
        mode: what the plan may do.
        effort: how hard to search. Ctrl-C ends the search, and the best plan so far is returned.
        form: whether transfers, reductions and optimizer steps are added.
        watch: called with (period, bound) whenever one of them gets better.

    Raises:
        JobError: a failed server is none of the job's.
        NoPlanError: a stage has no live server.
    """
    problem = make_problem(job, require_peers(job, failed), mode)
    # A global optimizer is searched by its makespan, and reported by its period.
    report = None if watch is None else lambda value, bound: watch(period(problem, value), period(problem, bound))
    programs, least, bound_by, planner = _search(problem, effort, report)
    bound = period(problem, least)
    lists = instructions(problem, programs)
    clock = run_clock(job, mode, lists)
    if form == "lowered":
        clock = fuse(job, clock)
        lists = add_updates(add_transfers(job, clock))
    return Plan(
        job=job,
        failed=tuple(sorted(problem.failed)),
        roles={},
        mode=mode,
        form=form,
        makespan=clock.makespan,
        period=clock.period,
        bound=bound,
        baseline=baseline_period(job),
        provenance=Provenance(
            planner=f"recycle {__version__} {planner}",
            seed=effort.seed,
            budget=effort.budget,
            bound_by=bound_by,
            status="optimal" if clock.period == bound else "bounded",
        ),
        programs={server: tuple(program) for server, program in lists.items()},
    )


def require_peers(job: Job, failed: Collection[Server]) -> tuple[Server, ...]:
    """The failed servers in order, if every stage has a live one.

    Raises:
        JobError: a failed server is none of the job's.
        NoPlanError: a stage has no live server.
    """
    failed = job.failed_set(failed)
    for stage in range(job.depth):
        if not job.live_pipelines(stage, failed):
            names = ", ".join(str(server) for server in failed if server.stage == stage)
            raise NoPlanError(
                f"stage {stage} has no live server ({names} failed): no peer holds its parameters, "
                "so it must be restored from a snapshot before training can go on"
            )
    return failed


def baseline_period(job: Job) -> int:
    """Period of the job's fault-free 1F1B schedule with one global optimizer step."""
    problem = fault_free_problem(job)
    return timing(problem, one_forward_one_backward(problem)).period


def _search(problem: Problem, effort: Effort, watch: Watch | None) -> tuple[Programs, int, str, str]:
    """Programs, the bound on their value, what proved it, and what made them."""
    analytic = lower_bound(problem)
    rule = f"{analytic.rule} of stage {analytic.stage}"
    if problem.total * problem.job.depth * problem.kinds > LARGE:
        return schedule_large(problem), analytic.value, rule, "large-scale scheduler"
    found = improve(problem, effort.stops, effort.seed, watch=watch)
    value = found.progress.value
    if value == analytic.value or not effort.proof:
        return found.programs, analytic.value, rule, "list scheduler and annealing"
    from recycle.planner.exact.prove import solve

    exact = solve(
        problem,
        seconds=effort.proof,
        hint=found.programs,
        lower=analytic.value,
        seed=effort.seed,
        on_improve=None if watch is None else lambda value, bound, _: watch(value, bound),
    )
    bound_by = "exact solver" if exact.bound > analytic.value else rule
    return exact.programs, exact.bound, bound_by, "exact solver"
