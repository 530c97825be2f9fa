"""Bamboo (NSDI'23): every server computes its successor's work as well, so that one of two neighbours may die."""

from typing import ClassVar

from recycle.study.buckets import Bucket
from recycle.study.cluster import Cluster
from recycle.study.constants import BAMBOO_RENDEZVOUS, BAMBOO_SHARE, TYPICAL, Measured
from recycle.study.policy import Policy, Reaction, Return, pause, train
from recycle.study.rates import Ground, Rates


class Bamboo(Policy):
    """Redundant computing all the time, a reconfiguration per change, a restart where two neighbours are dead.

    Args:
        ground: what is trained.
        rates: of the job.
        measured: whose pauses are taken.
    """

    name = "bamboo"
    source: ClassVar[str] = (
        "throughput: 0.32 of the fault-free job's (BERT on Oobleck's testbed, the better of the two models that fit); "
        "pause 76 to 450 s, restart 30 s more: inputs of the simulator in Oobleck's artifact"
    )

    def __init__(self, ground: Ground, rates: Rates, measured: Measured = TYPICAL) -> None:
        self.interval = ground.iteration
        self._rates = rates
        self._pause = measured.bamboo_pause

    def react(self, cluster: Cluster, died: bool) -> Reaction | None:
        """Reconfigure to whole pipelines."""
        pipelines = min(cluster.live // cluster.depth, cluster.pipelines)
        used = pipelines * cluster.depth
        training = train(BAMBOO_SHARE * self._rates.whole(pipelines), used)
        if died and cluster.has_dead_neighbours():
            restart = pause(Bucket.RESTARTING, self._pause + BAMBOO_RENDEZVOUS, cluster.live)
            return Reaction((restart, training), Return.CHECKPOINT)
        back = Return.SAFE_POINT if died else Return.NOWHERE
        return Reaction((pause(Bucket.MOVING, self._pause, cluster.live), training), back)
