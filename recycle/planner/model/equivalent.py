"""Jobs in the place of another one: a pipeline alone, pipelines by number, and pipelines in another order."""

from itertools import pairwise
from typing import NamedTuple, Self

import msgspec

from recycle.holding import placed
from recycle.job import Job, Server, Stage
from recycle.planner.model.problem import Problem, Programs, make_problem


class Twin(NamedTuple):
    """A problem whose pipelines are written out, as one whose pipelines are given by a number.

    Servers have the place in a pipeline that their first chunk gives them, and tasks the same numbers in both. What
    holds for one holds for the other: servers that hold nothing have nothing to do in either.

    Attributes:
        written: the problem as it is.
        problem: the same by number.
    """

    written: Problem
    problem: Problem

    @classmethod
    def of(cls, problem: Problem) -> Self | None:
        """The twin of a problem; None where its pipelines are not alike, or are given by a number already."""
        job = problem.job
        if job.even or not all(job.crews):
            return None
        first, *others = (alone(job, pipeline, joined=False) for pipeline in range(job.pipelines))
        even = msgspec.structs.replace(first, pipelines=job.pipelines)
        if any(other != first for other in others):
            return None
        dead = [server for server in even.servers() if cls.server(job, server) in problem.dead]
        return cls(problem, make_problem(even, dead, problem.mode))

    @staticmethod
    def server(job: Job, server: Server) -> Server:
        """What a server by number is called in the job that is written out."""
        return job.crews[server.pipeline][server.stage]

    def holder(self, place: int) -> Server:
        """A live server that has a place in its pipeline."""
        return self.server(self.written.job, Server(self.problem.live[place][0], place))

    def programs(self, programs: Programs) -> Programs:
        """A schedule of the problem by number, for the one that is written out."""
        idle: dict[Server, list[int]] = {server: [] for server in self.written.servers}
        return idle | {self.server(self.written.job, server): tasks for server, tasks in programs.items()}


def alone(job: Job, pipeline: int, joined: bool) -> Job:
    """A pipeline as a job of one, with the costs that its servers' speeds make of the chunks'.

    Args:
        job: whose pipelines are not alike.
        pipeline: which; its servers are those of its crew, in that order.
        joined: make one chunk of neighbouring chunks on one server.
    """
    assert not job.even, "all pipelines are alike"
    servers = [placed(job, server) for server in job.crews[pipeline]]
    runs = chunk_runs(job, pipeline) if joined else [range(chunk, chunk + 1) for chunk in range(len(job.stages))]
    of_server = [tuple(number for number, run in enumerate(runs) if run.start in server.chunks) for server in servers]
    stages: dict[int, Stage] = {}
    for server, numbers in zip(servers, of_server, strict=True):
        for number in numbers:
            chunks = [job.stages[chunk] for chunk in runs[number]]
            stages[number] = Stage(
                forward=sum(server.time(chunk.forward) for chunk in chunks),
                input_gradient=sum(server.time(chunk.input_gradient) for chunk in chunks),
                weight_gradient=sum(server.time(chunk.weight_gradient) for chunk in chunks),
                optimizer=sum(server.time(chunk.optimizer) for chunk in chunks),
                reduction=sum(chunk.reduction for chunk in chunks),
                held=sum(chunk.held for chunk in chunks),
                released_at_input_gradient=sum(chunk.released_at_input_gradient for chunk in chunks),
                taken_at_input_gradient=sum(chunk.taken_at_input_gradient for chunk in chunks),
                limit=server.limit,
            )
    return msgspec.structs.replace(
        job,
        pipelines=1,
        micro_batches=job.loads[pipeline],
        stages=tuple(stages[number] for number in range(len(runs))),
        latency=tuple(job.latency[run.stop - 1] for run in runs[:-1]),
        placement=tuple(of_server),
        layout=msgspec.UNSET,
    )


def chunk_runs(job: Job, pipeline: int) -> list[range]:
    """The chunks of the model in runs that one server of the pipeline can execute back to back."""
    place = {chunk: server for server in job.crews[pipeline] for chunk in placed(job, server).chunks}
    # Back to back, all I of a run come before its first W.
    apart = {server for server in job.crews[pipeline] if _together(job, server) > placed(job, server).limit}
    chunks = len(job.stages)
    cuts = [chunk for chunk in range(1, chunks) if place[chunk] != place[chunk - 1] or place[chunk] in apart]
    cuts = [0, *cuts, chunks]
    return [range(*cut) for cut in pairwise(cuts)]


def _together(job: Job, server: Server) -> int:
    return sum(job.stages[chunk].needs(1) for chunk in placed(job, server).chunks)


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
