"""Migration: a healthy server that takes over another stage's role, where failures cost less in its own stage."""

from collections.abc import Callable

import msgspec

from recycle.job import DeadServers, Job, Server
from recycle.plan.normalise import Counts


class Migration(msgspec.Struct, frozen=True):
    """A suggestion; nothing acts on it yet.

    Attributes:
        server: the healthy server that would move.
        role: the dead server whose stage it would take over; its parameters and optimizer state are what is copied.
        period: the period that would follow.
        gain: time that every iteration would save. Worth it if the iterations until the next failure save more than
            the copy takes.
    """

    server: Server
    role: Server
    period: int
    gain: int

    def describe(self, job: Job) -> str:
        """The suggestion in a line, with the times of its job."""
        gain, period = job.time_text(self.gain), job.time_text(self.period)
        return (
            f"{self.server} could act as {self.role}: saves {gain} per iteration (period {period}), "
            f"for one copy of the parameters and optimizer state of stage {self.role.stage}"
        )


def best_migration(
    job: Job, dead: DeadServers, period: int, period_of: Callable[[Counts], int | None]
) -> Migration | None:
    """The single move that saves the most, if any saves something.

    Args:
        job: the job.
        dead: the dead servers.
        period: the period of their plan.
        period_of: the period that a plan for some failure counts reaches; None where that is not known.
    """
    counts = dead.counts
    best: Migration | None = None
    for source in range(job.depth):
        for target in range(job.depth):
            if source == target or not counts[source] or counts[target] + 1 >= job.pipelines:
                continue
            moved = list(counts)
            moved[source] -= 1
            moved[target] += 1
            after = period_of(tuple(moved))
            if after is not None and after < (best.period if best else period):
                role = min(server for server in dead if server.stage == source)
                live = dead.live[target]
                pipeline = role.pipeline if role.pipeline in live else live[0]
                best = Migration(Server(pipeline, target), role, after, period - after)
    return best
