"""This project: re-routing, moved layers and state in host memory."""

import math
from typing import ClassVar

from recycle.placing.decision import Move, decide
from recycle.plan.normalise import Counts
from recycle.study.buckets import Bucket
from recycle.study.constants import TYPICAL, Constants
from recycle.study.policy import Cluster, Phase, Policy, Reaction, Return, pause, train
from recycle.study.rates import Ground, Rates


class Rerouting(Policy):
    """Re-routing alone: the job's own cut into stages, and plans around the dead.

    Args:
        ground: what is trained.
        rates: of the job.
        constants: what a change of servers takes, and a restart where a stage lost all its servers.
        spares: servers that take a dead one's place.
    """

    name = "recycle"
    source: ClassVar[str] = (
        "throughput: plans of this project's planner; recycle-pause per failure, and an iteration; restart and "
        "disk-interval where all servers of a stage are dead"
    )

    def __init__(self, ground: Ground, rates: Rates, constants: Constants = TYPICAL, spares: int = 0) -> None:
        super().__init__(ground, rates, constants)
        self.spares = spares

    def react(self, cluster: Cluster, died: bool) -> Reaction | None:
        """Redo the iteration by the plan around the dead; a joiner waits for the next one, and nobody waits for it."""
        counts = cluster.filled()
        if max(counts) >= cluster.pipelines:
            return Reaction((pause(Bucket.WAITING, float("inf"), 0),), self._after_loss())
        training = self._training(cluster, counts)
        if cluster.lost:
            return Reaction(
                (pause(Bucket.RESTARTING, self._constants.restart, cluster.live), *training), self._after_loss()
            )
        if not died:
            return Reaction(training)
        return Reaction(
            (pause(Bucket.REPLANNING, self._constants.recycle_pause, cluster.live), *training), Return.SAFE_POINT
        )

    def _after_loss(self) -> Return:
        return Return.CHECKPOINT

    def _training(self, cluster: Cluster, counts: Counts) -> tuple[Phase, ...]:
        return (train(self._rates.rerouted(counts), min(cluster.live, cluster.job)),)


class WithPlacements(Rerouting):
    """Re-routing at once, and layers moved in the background to where the live servers are, as runs do if told to."""

    name = "recycle+move-layers"
    source: ClassVar[str] = (
        "as recycle; where the decision of runs says that it pays, a stage's layers of layer-size each are copied to "
        "every server at bandwidth while training goes on, and after recycle-pause it goes on by the planner's plan of "
        "the best pipelines of unequal depth"
    )

    def _training(self, cluster: Cluster, counts: Counts) -> tuple[Phase, ...]:
        rate, used = self._rates.rerouted(counts), min(cluster.live, cluster.job)
        moved = self._rates.placed(used)
        if not rate or not moved:
            return (train(rate, used),)
        pausing = self._constants.recycle_pause
        seconds, layers = self._ground.iteration, -(-self._ground.layers // cluster.depth)
        size = round(layers * self._constants.layer_size)
        move = Move(seconds / rate, seconds / moved, used * size, size, self._constants.bandwidth, pausing)
        # As many servers come back as fail.
        until = 0.5 / self._ground.failures_per_second if self._ground.failures_per_second else math.inf
        if not decide(move, until).moves:
            return (train(rate, used),)
        return Phase(move.copying, rate, used), pause(Bucket.MOVING, pausing, used), train(moved, used)


class WithMemory(WithPlacements):
    """The same, and a stage without a live server comes back from host memory."""

    name = "recycle+memory"
    source: ClassVar[str] = (
        "as recycle+move-layers; where a stage lost all its servers, no more than an iteration is lost"
    )

    def _after_loss(self) -> Return:
        return Return.SAFE_POINT
