"""The fault-free 1F1B schedule: what retention is measured against."""

from recycle.job import Job, Server
from recycle.plan.mode import Mode
from recycle.planner.problem import Problem, Programs, make_problem


def one_forward_one_backward(problem: Problem) -> Programs:
    """1F1B with a fused or an unsplit backward, for a problem without failures.

    Stage s runs P - s forwards ahead of the first backward, or as many as its memory and the stage before it allow, and
    then one forward for each backward (PipeDream-Flush, Narayanan et al. 2021).
    """
    assert not problem.failed, "1F1B has no way around a failed server"
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
    """One pipeline of the job, whole, with a fused backward and a global optimizer: all pipelines are alike."""
    single = Job(
        pipelines=1,
        micro_batches=job.micro_batches,
        stages=job.stages,
        latency=job.latency,
        name=job.name,
        time_unit=job.time_unit,
        memory_unit=job.memory_unit,
    )
    return make_problem(single, (), Mode("fused", "global", "home"))
