"""Which live server executes each micro-batch at each stage."""

from collections.abc import Sequence
from typing import TypeAlias

from recycle.errors import NoPlanError
from recycle.planner.problem import Problem

Routes: TypeAlias = Sequence[Sequence[int]]
"""``routes[stage][home * M + m]``: the pipeline whose server of this stage executes micro-batch (home, m)."""


def balanced_routes(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """Healthy micro-batches stay at home, those of a failed server go to its least loaded peers, round robin.

    No server executes more than the ceiling of the mean over its live peers. That is a legal routing of both the
    ``home`` and the ``free`` form, and a free one cannot be better balanced.

    Raises:
        NoPlanError: a stage has no live server.
    """
    pipelines, micro_batches = problem.job.pipelines, problem.job.micro_batches
    routes = []
    for stage, live in enumerate(problem.live):
        if not live:
            raise NoPlanError(f"stage {stage} has no live server: no peer can take its work")
        alive = set(live)
        dead = [pipeline for pipeline in range(pipelines) if pipeline not in alive]
        route = [home for home in range(pipelines) for _ in range(micro_batches)]
        # Peers take turns, beginning behind the failed pipeline: loads differ by one at most.
        turn = sum(pipeline < dead[0] for pipeline in live) if dead else 0
        for home in dead:
            for m in range(micro_batches):
                route[home * micro_batches + m] = live[turn % len(live)]
                turn += 1
        routes.append(tuple(route))
    return tuple(routes)


def movable(problem: Problem, stage: int) -> list[int]:
    """The micro-batches ``home * M + m`` that may be executed by more than one server of the stage."""
    live = problem.live[stage]
    if len(live) < 2:
        return []
    if problem.mode.routing == "free":
        return list(range(problem.total))
    alive = set(live)
    return [unit for unit in range(problem.total) if unit // problem.job.micro_batches not in alive]
