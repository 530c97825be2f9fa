"""The view: which servers are alive, and in which epoch."""

from typing import NamedTuple, Self

from recycle.job import Server
from recycle.plan.plan import Plan


class View(NamedTuple):
    """The agreed set of live servers, and its number.

    Attributes:
        epoch: rises with every change of the set. Every group, tag and key carries it, so that nothing of an older
            view can be taken for something of this one.
        servers: the live servers, by pipeline and then stage.
    """

    epoch: int
    servers: tuple[Server, ...]

    @classmethod
    def of(cls, plan: Plan, epoch: int = 0) -> Self:
        """The view in which a plan can run: its live servers."""
        return cls(epoch, tuple(sorted(plan.programs)))

    def rank(self, server: Server) -> int:
        """The place of a live server among all."""
        return self.servers.index(server)

    def peers(self, stage: int) -> tuple[Server, ...]:
        """The live servers of a stage, by pipeline."""
        return tuple(server for server in self.servers if server.stage == stage)
