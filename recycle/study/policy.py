"""What a way of surviving is to the simulator: how it reacts to a change, and how often it can go back to."""

import enum
import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from recycle.study.buckets import Bucket
from recycle.study.cluster import Cluster
from recycle.study.constants import TYPICAL, Constants
from recycle.study.rates import Ground, Rates


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
        checkpoint_interval: seconds of fault-free training between checkpoints on disk, written without standing still.
    """

    name: str
    source: ClassVar[str]
    model_only: ClassVar[bool] = False
    spares: int = 0
    interval: float
    cost: float = 0.0
    checkpoint_interval: float = 3600.0

    def __init__(self, ground: Ground, rates: Rates, constants: Constants = TYPICAL) -> None:
        self.interval = ground.iteration
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


def train(rate: float, used: int) -> Phase:
    """Training until the next change."""
    return Phase(math.inf, rate, used)


def pause(bucket: Bucket, seconds: float, used: int) -> Phase:
    """A pause of some kind."""
    return Phase(seconds, 0.0, used, bucket)
