"""Assembling a plan: from compute instructions to programs, and all figures that follow from them."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import msgspec

from recycle.job import Job, Server, Stage
from recycle.plan.clock import Clock, run_clock
from recycle.plan.instruction import Instruction
from recycle.plan.mode import Mode
from recycle.plan.plan import Form, Plan, Provenance
from recycle.planner.model.equivalent import alone
from recycle.planner.model.lowering import lower
from recycle.planner.model.objective import timing
from recycle.planner.model.problem import Problem, Programs, make_problem


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


def unlimited_baseline(job: Job) -> int:
    """That of 1F1B with the memory that it wants: for P - s micro-batches on stage s, whatever the limits are.

    Pipelines that are not alike keep their limits.
    """
    if not job.even:
        return baseline_period(job)
    # No server wants more than this.
    wanted = job.needs(range(len(job.stages)), job.depth)
    stages = tuple(msgspec.structs.replace(stage, limit=max(stage.limit, wanted)) for stage in job.stages)
    return baseline_period(msgspec.structs.replace(job, stages=stages))


def baseline_period(job: Job) -> int:
    """Period of the job's fault-free 1F1B schedule with one global optimizer step; of its slowest pipeline's."""
    if not job.even:
        pipelines = [pipeline for pipeline, crew in enumerate(job.crews) if crew]
        return max(baseline_period(alone(job, pipeline, joined=True)) for pipeline in pipelines)
    problem = fault_free_problem(job)
    return timing(problem, one_forward_one_backward(problem)).period


def one_forward_one_backward(problem: Problem) -> Programs:
    """1F1B with a fused or an unsplit backward, for a problem without failures.

    Stage s runs P - s forwards ahead of the first backward, or as many as its memory and the stage before it allow, and
    then one forward for each backward (PipeDream-Flush, Narayanan et al. 2021).
    """
    assert not problem.dead, "1F1B has no way around a dead server"
    job = problem.job
    programs: dict[Server, list[int]] = {}
    ahead = job.micro_batches
    for stage in range(job.depth):
        ahead = min(ahead, job.depth - stage, job.stages[stage].capacity)
        order = [(number, 0) for number in range(ahead)]
        for number in range(job.micro_batches):
            order += [(number, kind) for kind in range(1, problem.kinds)]
            if number + ahead < job.micro_batches:
                order.append((number + ahead, 0))
        for pipeline in range(job.pipelines):
            base = pipeline * job.micro_batches
            programs[Server(pipeline, stage)] = [(base + number) * 3 + kind for number, kind in order]
    return dict(sorted(programs.items()))


def fault_free_problem(job: Job) -> Problem:
    """One pipeline of the job, whole, with a fused backward and a global optimizer: all pipelines are alike.

    Servers that hold several chunks hold as many here, but neighbouring ones, as one stage.
    """
    cuts = list(accumulate(map(len, job.chunks), initial=0))
    single = Job(
        pipelines=1,
        micro_batches=job.micro_batches,
        stages=tuple(_joined(job, place, range(*ends)) for place, ends in enumerate(pairwise(cuts))),
        latency=tuple(job.latency[cut - 1] for cut in cuts[1:-1]),
        name=job.name,
        time_unit=job.time_unit,
        memory_unit=job.memory_unit,
    )
    return make_problem(single, (), Mode("fused", "global", "home"))


def _joined(job: Job, place: int, chunks: range) -> Stage:
    """Neighbouring chunks as one stage, on the server at some place of a pipeline."""

    def total(field: str) -> int:
        return sum(getattr(job.stages[chunk], field) for chunk in chunks)

    fields = {field: total(field) for field in Stage.__struct_fields__ if field != "limit"}
    # Their backward passes come one after another.
    fields["taken_at_input_gradient"] = max(job.stages[chunk].taken_at_input_gradient for chunk in chunks)
    # Chunks of unequal size may leave neighbours more than the server was given: one micro-batch fits all the same.
    return Stage(**fields, limit=max(job.limit(place), job.needs(chunks)))
