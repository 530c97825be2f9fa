"""A way of surviving in a study: which servers it sees dead, how it reacts, and how often it can go back to."""

import enum
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
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

    Attributes:
        dead: servers.
        lost: whether the last change has left a stage no server that held it.
    """

    def __init__(self, pipelines: int, depth: int, spares: int = 0) -> None:
        self.pipelines = pipelines
        self.depth = depth
        self.spares = spares
        self.dead: set[int] = set()
        self.lost = False
        self._of_stage = [0] * depth
        self._of_pipeline = [0] * pipelines
        self._holders = [pipelines] * depth
        # The stages of live spares that have one, and of servers that have moved to another.
        self._elsewhere: dict[int, int] = {}

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
    def counts(self) -> Counts:
        """Dead servers of each stage."""
        return tuple(self._of_stage)

    @property
    def whole_pipelines(self) -> int:
        """Pipelines without a dead server."""
        return self._of_pipeline.count(0)

    def change(self, changes: Iterable[tuple[int, bool]]) -> bool:
        """Servers die or come back at one time; whether one died that had a part in the job: not a spare in reserve."""
        died: Counter[int | None] = Counter()
        for server, dead in changes:
            assert (server in self.dead) is not dead, (server, dead)
            own = server % self.depth if server < self.job else None
            self.dead ^= {server}
            if dead:
                died[self._elsewhere.get(server, own)] += 1
            if own is not None:
                self._of_stage[own] += 1 if dead else -1
                self._of_pipeline[server // self.depth] += 1 if dead else -1
        self.lost = any(died[stage] >= held for stage, held in enumerate(self._holders))
        self._share_out()
        return any(stage is not None for stage in died)

    def _share_out(self) -> None:
        """Live spares take places, where most are dead first; a server moves to a stage without one, if any is left."""
        held = [self.pipelines - dead for dead in self._of_stage]
        self._elsewhere = {}
        for spare in range(self.job, self.size):
            stage = min(range(self.depth), key=held.__getitem__)
            if spare not in self.dead and held[stage] < self.pipelines:
                held[stage] += 1
                self._elsewhere[spare] = stage
        while min(held) < 1 < max(held):
            stage, giver = held.index(0), held.index(max(held))
            own = range(giver, self.job, self.depth)
            mover = next(each for each in own if each not in self.dead and each not in self._elsewhere)
            held[stage] += 1
            held[giver] -= 1
            self._elsewhere[mover] = stage
        self._holders = held

    def has_dead_neighbours(self) -> bool:
        """Whether two neighbouring stages of a pipeline are dead, the last and the first among them."""
        return any(
            server < self.job and (server - server % self.depth + (server + 1) % self.depth) in self.dead
            for server in self.dead
            if self.depth > 1
        )

    def filled(self) -> Counts:
        """Servers that each stage lacks when spares have taken places, and servers have moved to stages without one."""
        return tuple(self.pipelines - held for held in self._holders)


class Phase(NamedTuple):
    """A stretch of time after a change.

    Attributes:
        seconds: how long it lasts if nothing changes; infinite for the last one.
        rate: share of fault-free throughput.
        used: servers that take part, if so many are alive.
        bucket: ``USEFUL`` to train, or what it pauses for; a pause has rate 0. At the end of one for ``SNAPSHOT``, all
            that was trained is safe; it is left out if all is safe already.
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
        spares: servers that are paid for beyond the job's.
        interval: seconds of fault-free training between safe points.
        cost: seconds for which training stands still at a safe point.
        checkpoint_interval: seconds of fault-free training between checkpoints on disk.
        standing: seconds for which training stands still for these, for each second of fault-free training.
    """

    name: str
    source: ClassVar[str]
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
            died: whether a server died that had a part in the job.
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
