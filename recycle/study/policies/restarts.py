"""Restarting: from checkpoints (Young/Daly's interval), and from host memory (Gemini)."""

import math
from typing import ClassVar

from recycle.study.buckets import Bucket
from recycle.study.constants import TYPICAL, Constants
from recycle.study.policy import Cluster, Policy, Reaction, Return, pause, standing_still, train
from recycle.study.rates import Ground, Rates


class Checkpoints(Policy):
    """Stop, and start again from the newest checkpoint on whole pipelines; a larger start where that gains a pipeline.

    Args:
        ground: what is trained.
        rates: of the job.
        constants: what a checkpoint and a restart take.
    """

    name = "checkpoints"
    source: ClassVar[str] = (
        "throughput: whole pipelines; checkpoint-cost every checkpoint-interval, and restart per failure"
    )

    def __init__(self, ground: Ground, rates: Rates, constants: Constants = TYPICAL) -> None:
        super().__init__(ground, rates, constants)
        # Its safe points are the checkpoints.
        self.cost, self.standing = constants.checkpoint_cost, 0.0
        rate = max(ground.failures_per_second, 1e-9)
        young = math.sqrt(2 * constants.checkpoint_cost / rate)
        self.interval = max(ground.iteration, constants.checkpoint_interval or young)
        self._restart = constants.restart
        self._pipelines: int | None = None

    def react(self, cluster: Cluster, died: bool) -> Reaction | None:
        """Restart after a death, and where servers that came back make a pipeline."""
        pipelines = min(cluster.live // cluster.depth, cluster.pipelines)
        if not died and pipelines == self._pipelines:
            return None
        self._pipelines = pipelines
        training = train(self._rates.whole(pipelines), pipelines * cluster.depth)
        restart = pause(Bucket.RESTARTING, self._restart, cluster.live)
        if died:
            return Reaction((restart, training), Return.SAFE_POINT)
        # A restart on purpose begins with a checkpoint.
        return Reaction((pause(Bucket.SNAPSHOT, self.cost, cluster.live), restart, training))


class Gemini(Checkpoints):
    """Gemini (SOSP'23): every iteration is in the memory of two machines, at no cost; a restart reads it from there."""

    name = "gemini"
    source: ClassVar[str] = (
        "a snapshot every iteration without cost, one and a half iterations lost, and gemini-restart per failure, "
        "without waiting for a replacement"
    )

    def __init__(self, ground: Ground, rates: Rates, constants: Constants = TYPICAL) -> None:
        super().__init__(ground, rates, constants)
        self.cost, self.standing = 0.0, standing_still(constants)
        self.interval = self._iteration = ground.iteration
        self._restart = constants.gemini_restart

    def react(self, cluster: Cluster, died: bool) -> Reaction | None:
        """As restarts from checkpoints, with one more iteration redone: that whose snapshot was on its way."""
        reaction = super().react(cluster, died)
        if reaction is None or not died:
            return reaction
        redone = pause(Bucket.REDONE, self._iteration, cluster.live)
        return reaction._replace(phases=(reaction.phases[0], redone, *reaction.phases[1:]))


class Spares(Checkpoints):
    """Restarts from checkpoints with servers in reserve.

    Args:
        ground: what is trained.
        rates: of the job.
        constants: what a checkpoint and a restart take.
        spares: how many.
        warm: whether they run already, so that a restart only detects the failure and loads the checkpoint.
    """

    source: ClassVar[str] = (
        "costs as checkpoints; a warm spare takes detect, and checkpoint-cost to load the checkpoint"
    )

    def __init__(
        self, ground: Ground, rates: Rates, constants: Constants = TYPICAL, spares: int = 1, warm: bool = False
    ) -> None:
        super().__init__(ground, rates, constants)
        self.name = f"spares:{spares}{':warm' if warm else ''}"
        self.spares = spares
        self._warm = constants.detect + constants.checkpoint_cost if warm else self._restart

    def react(self, cluster: Cluster, died: bool) -> Reaction | None:
        """A restart; a short one where warm spares made the job whole. A repaired spare changes nothing."""
        reaction = super().react(cluster, died)
        if reaction is None or cluster.live < cluster.job:
            return reaction
        *before, restart, training = reaction.phases
        return reaction._replace(phases=(*before, restart._replace(seconds=self._warm), training))
