"""The published fault-free schedule: 1F1B, which plans are compared with."""

from itertools import accumulate, pairwise

from recycle.job import Job, Server, Stage
from recycle.plan.mode import Mode
from recycle.planner.model.problem import Problem, Programs, make_problem


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
    if len(chunks) == 1:
        return job.stages[chunks[0]]

    def total(field: str) -> int:
        return sum(getattr(job.stages[chunk], field) for chunk in chunks)

    # Chunks of unequal size may leave neighbours more than the server was given: one micro-batch fits all the same.
    fields = {field: total(field) for field in Stage.__struct_fields__ if field != "limit"}
    return Stage(**fields, limit=max(job.limit(place), fields["held"]))
