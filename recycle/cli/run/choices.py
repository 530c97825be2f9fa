"""What a run is made of, from what was asked for: its plan and its faults. Nothing here imports torch."""

from pathlib import Path
from typing import NamedTuple

from recycle.cli.options import describe_dead, load_legal_plan
from recycle.cli.parameters import RandomFaults
from recycle.errors import UserError
from recycle.faults.file import load_faults
from recycle.faults.menu import Faults
from recycle.faults.random_faults import random_faults
from recycle.job import Job, Server
from recycle.placement import placement_text
from recycle.plan.catalogue import Catalogue
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan

LONGEST_RUN = 24 * 3600.0


class Chosen(NamedTuple):
    """What a run is made of.

    Attributes:
        plan: that it begins with.
        faults: what goes wrong in it.
    """

    plan: Plan
    faults: Faults


def choose(
    job: Job,
    dead: tuple[Server, ...],
    iterations: int,
    *,
    plan: Path | None,
    faults: Path | RandomFaults | None,
    catalogue: Path | None,
) -> Chosen:
    """Read the files of a run, and make its plan where no file has it: files that are wrong are refused before that.

    Args:
        job: that is trained.
        dead: the servers that take no part from the start.
        iterations: how many are run.
        plan: a file with the plan.
        faults: what goes wrong: as a file says, or at random.
        catalogue: a file with plans for failures, which only has to fit.

    Raises:
        IllegalPlan: the plan is illegal.
        UserError: a file cannot be read or does not fit the run.
    """
    given = None if plan is None else _load_plan(job, plan, dead)
    failed = job.dead_servers(dead) if given is None else given.dead
    wrong = Faults()
    if isinstance(faults, Path):
        wrong = load_faults(faults, job, iterations, dead=failed)
    elif faults is not None:
        wrong = random_faults(job, faults.mtbf, faults.seed, LONGEST_RUN, mean_time_to_repair=faults.mtbf, dead=failed)
    if catalogue is not None and not catalogue.is_fifo():  # what is no file can be read once, and the run reads it
        Catalogue(catalogue, job if given is None else given.job).require_lowered()
    if given is None:
        from recycle.planner.source import first_plan

        given = first_plan(job, dead, Mode())
    return Chosen(given, wrong)


def _load_plan(job: Job, path: Path, dead: tuple[Server, ...]) -> Plan:
    plan = load_legal_plan(path)
    plan.require_lowered(str(path))
    if plan.job.layout != job.layout:
        raise UserError(f"{path}: the plan is for pipelines of another layout than the job's: make a plan for this job")
    shapes = [(each.pipelines, each.depth, each.micro_batches) for each in (plan.job, job)]
    if shapes[0] != shapes[1]:
        planned, asked = (" x ".join(map(str, shape)) for shape in shapes)
        raise UserError(
            f"{path}: the plan is for {planned} pipelines x stages x micro-batches, and the job is {asked}: "
            "make a plan for this job"
        )
    if plan.job.placements != job.placements:
        planned, asked = (placement_text(each.chunks) for each in (plan.job, job))
        raise UserError(
            f"{path}: the plan is for placement {planned}, and the job's is {asked}: make a plan for this job"
        )
    if dead and plan.dead != job.dead_servers(dead):
        raise UserError(
            f"{path}: the plan is for {describe_dead(plan.dead)} dead, and --dead says "
            f"{describe_dead(dead)}: make a plan for these servers, or leave --dead out"
        )
    return plan
