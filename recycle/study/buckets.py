"""Where the time of servers went: every second of every server is in one bucket."""

import enum
from collections.abc import Mapping
from typing import NamedTuple

import msgspec


class Bucket(enum.Enum):
    """What a server's second was spent on.

    ``USEFUL`` trains; ``WAITING`` takes part in the training without adding to it, because others have more to do or
    because work is done twice for safety; ``REDONE`` was training that a failure threw away.
    """

    USEFUL = "useful"
    REDONE = "redone"
    WAITING = "waiting"
    REPLANNING = "re-planning"
    MOVING = "moving"
    RESTARTING = "restarting"
    SNAPSHOT = "snapshot"
    UNUSED = "unused"
    DEAD = "dead"


class RunSpan(NamedTuple):
    """A stretch of a simulated run.

    Attributes:
        start: seconds.
        end: seconds.
        rate: share of fault-free throughput, 0 in a pause.
        bucket: ``USEFUL`` while it trains, or what it pauses for.
        live: servers that are alive.
    """

    start: float
    end: float
    rate: float
    bucket: Bucket
    live: int


class Outcome(msgspec.Struct, frozen=True):
    """What a policy made of a trace.

    Attributes:
        policy: its name.
        paid: servers that are paid for, spares among them.
        job: servers of the job.
        seconds: length of the trace.
        progress: seconds of fault-free training that are left at the end.
        buckets: server-seconds in each.
        failures: changes of the cluster in which a server died.
        spans: the run over time.
    """

    policy: str
    paid: int
    job: int
    seconds: float
    progress: float
    buckets: Mapping[Bucket, float]
    failures: tuple[float, ...]
    spans: tuple[RunSpan, ...]

    @property
    def goodput(self) -> float:
        """Useful samples per server-hour paid for, over those of the fault-free job: what policies are compared by."""
        return self.progress * self.job / (self.seconds * self.paid)

    def without_spans(self) -> "Outcome":
        """The same without the run over time, which takes much memory."""
        return msgspec.structs.replace(self, spans=())
