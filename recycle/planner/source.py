"""Plans for runs: what is put in, from above, where a training server asks for a plan. No server imports the planner.

A run trains while these plans are made, or waits for them: they are searched for in so many moves, or seconds, as
training can do without.
"""

import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from recycle.files import own_folder
from recycle.job import Job, Server
from recycle.plan.mode import Mode
from recycle.plan.plan import Form, Plan, Provenance
from recycle.planner.anneal.improve import LARGE
from recycle.planner.assemble import assemble, one_forward_one_backward
from recycle.planner.catalogue import failure_vectors, make_catalogue, parts_of
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.bounds import lower_bound, period
from recycle.planner.model.lowering import instructions
from recycle.planner.model.problem import make_problem
from recycle.planner.model.stopping import MaxMoves, MaxSeconds

MOVES_BEFORE, MOVES_IN_RECOVERY = 20_000, 2_000
"""Moves of a search before a run, and of one for which training stands still."""

PLANNING_AHEAD = 3.0
"""Seconds that a catalogue may take before a run."""


def plan_maker(job: Job, mode: Mode, moves: int = MOVES_IN_RECOVERY) -> Callable[[Iterable[Server]], Plan]:
    """What makes a plan when servers have died, by default in a time for which training can stand still."""
    return lambda dead: make_plan(job, dead, mode, _effort(moves))


def first_plan(job: Job, dead: Iterable[Server], mode: Mode) -> Plan:
    """A plan made before a run begins.

    Raises:
        JobError: a dead server is none of the job's.
        NoPlanError: a stage has no live server.
    """
    return plan_maker(job, mode, MOVES_BEFORE)(dead)


def plan_ahead(job: Job, mode: Mode, path: Path) -> Path | None:
    """A catalogue for as many failures as can be planned in a few seconds, at most two; None if that is none.

    Where pipelines are not alike there is none: their plans are made when servers die.

    Args:
        job: what is trained.
        mode: what the plans may do.
        path: where the catalogue is written.
    """
    if job.pipelines == 1 or not job.even:
        return None
    begin = time.monotonic()
    plan_maker(job, mode)(job.servers()[:1])
    each = time.monotonic() - begin
    for failures in (2, 1):
        if each * sum(1 for _ in failure_vectors(job, failures)) < PLANNING_AHEAD:
            own_folder(path.parent)
            # What an interrupted start has left may be for another job.
            shutil.rmtree(parts_of(path), ignore_errors=True)
            make_catalogue(path, job, mode, failures, _effort(MOVES_IN_RECOVERY), "lowered", lambda *_: None)
            path.chmod(0o600)
            return path
    return None


def megatron_plan(job: Job, dead: Iterable[Server], mode: Mode, seconds: float) -> Plan:
    """A plan for Megatron's training code: its own order, 1F1B, where all servers are alive, or else one around them.

    In its own order gradients add up as without recycle, to the bit; the backward is fused, the optimizer the mode's.
    With virtual stages there is a plan of the planner's instead.

    Args:
        job: what is trained.
        dead: the servers that are dead.
        mode: of plans around dead servers.
        seconds: how long to search for such a plan.

    Raises:
        JobError: a dead server is none of the job's.
        NoPlanError: a stage has no live server.
    """
    dead = job.dead_servers(dead)
    if dead or not job.standard:
        return make_plan(job, dead, mode, Effort((MaxSeconds(seconds),), f"{seconds:g} s"))
    return _own_order(job, mode, "lowered")


def price(job: Job, dead: Iterable[Server], mode: Mode, seconds: float) -> Plan:
    """A plan as ``megatron_plan`` makes it, for its figures: of compute form, and hardly improved if it is large."""
    dead = job.dead_servers(dead)
    if not dead and job.standard:
        return _own_order(job, mode, "compute")
    large = 3 * job.pipelines * job.depth * job.micro_batches > LARGE
    effort = _effort(1) if large else Effort((MaxSeconds(seconds),), f"{seconds:g} s")
    return make_plan(job, dead, mode, effort, "compute")


def _own_order(job: Job, mode: Mode, form: Form) -> Plan:
    problem = make_problem(job, (), Mode("fused", mode.optimizer))
    bound = lower_bound(problem)
    compute = instructions(problem, one_forward_one_backward(problem))
    provenance = Provenance("1F1B", 0, "none", bound.proof, "bounded")
    return assemble(problem, compute, form, period(problem, bound.value), provenance)


def _effort(moves: int) -> Effort:
    return Effort((MaxMoves(moves),), f"{moves} moves")
