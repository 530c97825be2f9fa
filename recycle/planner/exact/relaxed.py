"""Relaxations of the planning problem that the solver can often solve to the end, for bounds that the rules do not see.

Micro-batches that differ only by their number can be taken in one order. If two of them change order between tasks,
exchange all that follows: the first to end is then the first to go on, so no dependency breaks, and where both
are on one server at each stage, every server keeps the same tasks at the same times. Servers are pooled until they are.
"""

from recycle.planner.exact.timeline import TimelineModel
from recycle.planner.model.problem import Problem


def pool_stages(problem: Problem, lower: int, upper: int) -> TimelineModel:
    """Every stage is one pool of its live servers and their memory; all micro-batches are taken in one order."""
    timeline = TimelineModel(problem, lower, upper)
    units = list(range(problem.total))
    for stage, live in enumerate(problem.live):
        _share(timeline, stage, units, len(live))
        timeline.limit_work(stage, units, len(live))
        if _is_mixed(problem, stage):
            timeline.limit_memory(stage, units, len(live))
    return timeline


def pool_peers(problem: Problem, lower: int, upper: int) -> TimelineModel:
    """For a rule that keeps micro-batches at home: what a dead server has left is done by the pool of its peers.

    The micro-batches of one pipeline are taken in one order, for each stage has one server for them, or one pool.
    """
    timeline = TimelineModel(problem, lower, upper)
    pipelines, micro_batches = problem.job.pipelines, problem.job.micro_batches
    for stage, live in enumerate(problem.live):
        for home in range(pipelines):
            units = list(range(home * micro_batches, (home + 1) * micro_batches))
            servers = 1 if home in live else len(live)
            _share(timeline, stage, units, servers)
            if home in live:
                timeline.limit_work(stage, units, 1)
                if _is_mixed(problem, stage):
                    timeline.limit_memory(stage, units, 1)
        if len(live) < pipelines:
            everything = list(range(problem.total))
            timeline.limit_work(stage, everything, len(live))
            timeline.limit_memory(stage, everything, len(live))
    return timeline


def _share(timeline: TimelineModel, stage: int, units: list[int], servers: int) -> None:
    for kind in range(timeline.problem.kinds):
        timeline.take_in_order(stage, kind, units, servers)
    timeline.recycle_in_order(stage, units, servers)


def _is_mixed(problem: Problem, stage: int) -> bool:
    return problem.acquire[stage][1] > 0 or 0 < problem.release[stage][1] < problem.job.stages[stage].held
