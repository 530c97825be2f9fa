"""The same problem with its pipelines in another order, for planners that treat the first ones otherwise."""

from typing import NamedTuple, Self

import msgspec

from recycle.job import Job, Server
from recycle.planner.model.problem import Problem, Programs, make_problem


class Rotation(NamedTuple):
    """A problem whose pipelines are numbered from another one on.

    Attributes:
        places: by how many numbers each pipeline has moved up; the last ones have come to the front.
        problem: in the new numbers.
    """

    places: int
    problem: Problem

    @classmethod
    def of(cls, problem: Problem, places: int) -> Self:
        """A problem in other numbers."""
        job = problem.job
        dead = [_moved(job, server, places) for server in problem.dead]
        if isinstance(job.layout, msgspec.UnsetType):
            return cls(places, make_problem(job, dead, problem.mode))
        pipelines = [
            msgspec.structs.replace(
                pipeline,
                servers=tuple(
                    server
                    if server.pipeline is None
                    else msgspec.structs.replace(server, pipeline=(server.pipeline + places) % job.pipelines)
                    for server in pipeline.servers
                ),
            )
            for pipeline in job.layout
        ]
        layout = (*pipelines[-places:], *pipelines[:-places])
        return cls(places, make_problem(msgspec.structs.replace(job, layout=layout), dead, problem.mode))

    def programs(self, programs: Programs) -> Programs:
        """A schedule in the new numbers, in the old ones."""
        job, total = self.problem.job, self.problem.total
        shift = self.places * job.micro_batches

        def old(task: int) -> int:
            unit, kind = divmod(task, 3)
            slot, unit = divmod(unit, total)
            return (slot * total + (unit - shift) % total) * 3 + kind

        return {_moved(job, server, -self.places): list(map(old, tasks)) for server, tasks in programs.items()}


def _moved(job: Job, server: Server, places: int) -> Server:
    return Server((server.pipeline + places) % job.pipelines, server.stage)
