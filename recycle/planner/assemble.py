"""Assembling a plan: from compute instructions to programs, and all figures that follow from them."""

from collections.abc import Mapping, Sequence

import msgspec

from recycle.job import Job, Server
from recycle.plan.clock import Clock, run_clock
from recycle.plan.instruction import Instruction
from recycle.plan.plan import Form, Plan, Provenance
from recycle.planner.greedy.published import fault_free_problem, one_forward_one_backward
from recycle.planner.model.equivalent import alone
from recycle.planner.model.evaluate import timing
from recycle.planner.model.lowering import lower
from recycle.planner.model.problem import Problem, make_problem


def assemble(
    problem: Problem,
    compute: Mapping[Server, Sequence[Instruction]],
    form: Form,
    bound: int,
    provenance: Provenance,
) -> Plan:
    """A plan of a problem, with its makespan, period, baseline and status.

    Args:
        problem: what was planned.
        compute: the compute instructions of every live server.
        form: whether transfers, reductions and optimizer steps are added.
        bound: proven lower bound on the period.
        provenance: who made it; its status is set here.

    Raises:
        Deadlock: the instructions wait for each other.
    """
    return assemble_timed(problem, run_clock(problem.job, problem.mode, compute), form, bound, provenance)


def assemble_timed(problem: Problem, clock: Clock, form: Form, bound: int, provenance: Provenance) -> Plan:
    """The same of instructions whose times are known."""
    programs = clock.compute
    if form == "lowered":
        clock, programs = lower(problem.job, clock)
    return Plan(
        job=problem.job,
        dead=problem.dead,
        roles={},
        mode=problem.mode,
        form=form,
        makespan=clock.makespan,
        period=clock.period,
        bound=bound,
        baseline=baseline_period(problem.job),
        provenance=msgspec.structs.replace(provenance, status="optimal" if clock.period == bound else "bounded"),
        programs={server: tuple(program) for server, program in programs.items()},
    )


def lower_plan(plan: Plan) -> Plan:
    """A legal plan of compute form in lowered form, with the figures that this gives it."""
    problem = make_problem(plan.job, plan.dead, plan.mode)
    lowered = assemble(problem, plan.programs, "lowered", plan.bound, plan.provenance)
    return msgspec.structs.replace(lowered, roles=plan.roles, baseline=plan.baseline)


def unlimited_baseline(job: Job) -> int:
    """That of 1F1B with the memory that it wants: for P - s micro-batches on stage s, whatever the limits are.

    Pipelines that are not alike keep their limits.
    """
    if not job.even:
        return baseline_period(job)
    wanted = job.depth * max(sum(job.stages[chunk].held for chunk in chunks) for chunks in job.chunks)
    stages = tuple(msgspec.structs.replace(stage, limit=max(stage.limit, wanted)) for stage in job.stages)
    return baseline_period(msgspec.structs.replace(job, stages=stages))


def baseline_period(job: Job) -> int:
    """Period of the job's fault-free 1F1B schedule with one global optimizer step; of its slowest pipeline's."""
    if not job.even:
        pipelines = [pipeline for pipeline, crew in enumerate(job.crews) if crew]
        return max(baseline_period(alone(job, pipeline, joined=True)) for pipeline in pipelines)
    problem = fault_free_problem(job)
    return timing(problem, one_forward_one_backward(problem)).period
