"""What a run is made of, from what was asked for: its plan and its faults."""

from pathlib import Path

from recycle.cli.options import describe_dead, load_legal_plan
from recycle.cli.parameters import RandomFaults
from recycle.errors import UserError
from recycle.faults.file import load_faults
from recycle.faults.menu import Faults
from recycle.faults.random_faults import random_faults
from recycle.job import Job, Server
from recycle.placement import placement_text
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan

LONGEST_RUN = 24 * 3600.0


def choose_faults(job: Job, plan: Plan, iterations: int, asked: Path | RandomFaults | None) -> Faults:
    """What goes wrong in a run: as a file says, at random, or nothing.

    Raises:
        UserError: the file cannot be read or does not fit the run.
    """
    if asked is None:
        return Faults()
    if isinstance(asked, Path):
        return load_faults(asked, job, iterations, dead=plan.dead)
    return random_faults(job, asked.mtbf, asked.seed, LONGEST_RUN, mean_time_to_repair=asked.mtbf, dead=plan.dead)


def choose_plan(job: Job, path: Path | None, dead: tuple[Server, ...]) -> Plan:
    """The plan of a file, or one that is made now.

    Raises:
        IllegalPlan: the plan is illegal.
        UserError: it is for another job or other servers than asked for.
    """
    if path is None:
        from recycle.planner.source import first_plan

        return first_plan(job, dead, Mode())
    plan = load_legal_plan(path)
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
