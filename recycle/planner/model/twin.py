"""Pipelines that are written out one by one and are alike all the same: the job by number that they are."""

from typing import NamedTuple, Self

import msgspec

from recycle.job import Job, Server
from recycle.planner.model.alone import alone
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
        if any(other != first for other in others) or even.overlaps != job.overlaps:
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
