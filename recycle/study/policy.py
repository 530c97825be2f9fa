"""A way of surviving in a study: which servers it sees dead, how it reacts, and how often it can go back to."""

import enum
import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from recycle.plan.normalise import Counts
from recycle.study.buckets import Bucket
from recycle.study.constants import TYPICAL, Constants
from recycle.study.rates import Ground, Rates


class Cluster:
    """A job's servers by pipeline and then stage, and spare ones behind them.

    Args:
        pipelines: of the job.
        depth: stages of a pipeline.
        spares: servers beyond the job's.
    """

    def __init__(self, pipelines: int, depth: int, spares: int = 0) -> None:
        self.pipelines = pipelines
        self.depth = depth
        self.spares = spares
        self.dead: set[int] = set()
        self._of_stage = [0] * depth
        self._of_pipeline = [0] * pipelines
        self._spares_dead = 0

    @property
    def job(self) -> int:
        """Servers of the job."""
        return self.pipelines * self.depth

    @property
    def size(self) -> int:
        """All servers."""
        return self.job + self.spares

    @property
    def live(self) -> int:
        """Servers that are alive, spares among them."""
        return self.size - len(self.dead)

    @property
    def live_spares(self) -> int:
        """Spare servers that are alive."""
        return self.spares - self._spares_dead

    @property
    def counts(self) -> Counts:
        """Dead servers of each stage."""
        return tuple(self._of_stage)

    @property
    def whole_pipelines(self) -> int:
        """Pipelines without a dead server."""
        return self._of_pipeline.count(0)

    def change(self, server: int, dead: bool) -> None:
        """A server dies or comes back."""
        assert (server in self.dead) is not dead, (server, dead)
        step = 1 if dead else -1
        self.dead ^= {server}
        if server >= self.job:
            self._spares_dead += step
        else:
            self._of_stage[server % self.depth] += step
            self._of_pipeline[server // self.depth] += step

    def has_dead_neighbours(self) -> bool:
        """Whether two neighbouring stages of a pipeline are dead, the last and the first among them."""
        return any(
            server < self.job and (server - server % self.depth + (server + 1) % self.depth) in self.dead
            for server in self.dead
            if self.depth > 1
        )

    def filled(self) -> Counts:
        """Dead servers of each stage when live spares have taken places, where most are dead first."""
        counts = list(self._of_stage)
        for _ in range(min(self.live_spares, sum(counts))):
            counts[max(range(self.depth), key=lambda stage: counts[stage])] -= 1
        return tuple(counts)


class Phase(NamedTuple):
    """A stretch of time after a change.

    Attributes:
        seconds: how long it lasts if nothing changes; infinite for the last one.
        rate: share of fault-free throughput.
        used: servers that take part, if so many are alive.
        bucket: ``USEFUL`` to train, or what it pauses for; a pause has rate 0.
    """

    seconds: float
    rate: float
    used: int
    bucket: Bucket = Bucket.USEFUL


class Return(enum.Enum):
    """Where training goes on after a change: where it is, at the last safe point, or at the last checkpoint on disk."""

    NOWHERE = 0
    SAFE_POINT = 1
    CHECKPOINT = 2


class Reaction(NamedTuple):
    """What a policy does at a change.

    Attributes:
        phases: one after the other; the last one is infinite.
        back: what is lost.
    """

    phases: tuple[Phase, ...]
    back: Return = Return.NOWHERE


class Policy(ABC):
    """A way of surviving.

    Args:
        ground: what is trained.
        rates: of the job.
        constants: what a change of servers takes.

    Attributes:
        name: as it is chosen by.
        source: where its constants come from, in words.
        model_only: whether it models what this project has not built.
        spares: servers that are paid for beyond the job's.
        interval: seconds of fault-free training between safe points.
        cost: seconds for which training stands still at a safe point.
        checkpoint_interval: seconds of fault-free training between checkpoints on disk.
        standing: seconds for which training stands still for these, for each second of fault-free training.
    """

    name: str
    source: ClassVar[str]
    model_only: ClassVar[bool] = False
    spares: int = 0
    interval: float
    cost: float = 0.0
    checkpoint_interval: float = 3600.0
    standing: float = 0.0

    def __init__(self, ground: Ground, rates: Rates, constants: Constants = TYPICAL) -> None:
        self.interval = ground.iteration
        self.checkpoint_interval = constants.checkpoint_interval or constants.disk_interval
        self.standing = standing_still(constants)
        self._ground = ground
        self._rates = rates
        self._constants = constants

    @abstractmethod
    def react(self, cluster: Cluster, died: bool) -> Reaction | None:
        """What it does when servers died or came back; None to go on as before. It is asked once at the start.

        Args:
            cluster: as it is after the change.
            died: whether a server died. It is not among the changes that only bring servers back.
        """


def standing_still(constants: Constants) -> float:
    """Seconds for checkpoints, for each second of fault-free training: a job writes them however failures are survived.

    How often it writes them is only known if it is given.
    """
    return constants.checkpoint_cost / constants.checkpoint_interval if constants.checkpoint_interval else 0.0


def train(rate: float, used: int) -> Phase:
    """Training until the next change."""
    return Phase(math.inf, rate, used)


def pause(bucket: Bucket, seconds: float, used: int) -> Phase:
    """A pause of some kind."""
    return Phase(seconds, 0.0, used, bucket)
