"""Bamboo (NSDI'23): every server computes its successor's work as well, so that one of two neighbours may die."""

from typing import ClassVar

from recycle.study.buckets import Bucket
from recycle.study.cluster import Cluster
from recycle.study.policy import Policy, Reaction, Return, pause, train


class Bamboo(Policy):
    """Redundant computing all the time, a reconfiguration per change, a restart where two neighbours are dead."""

    name = "bamboo"
    source: ClassVar[str] = (
        "throughput: bamboo-share of whole pipelines; bamboo-pause per change, and bamboo-rendezvous more where two "
        "neighbours are dead"
    )

    def react(self, cluster: Cluster, died: bool) -> Reaction | None:
        """Reconfigure to whole pipelines."""
        pipelines = min(cluster.live // cluster.depth, cluster.pipelines)
        used = pipelines * cluster.depth
        training = train(self._constants.bamboo_share * self._rates.whole(pipelines), used)
        if died and cluster.has_dead_neighbours():
            restart = pause(
                Bucket.RESTARTING, self._constants.bamboo_pause + self._constants.bamboo_rendezvous, cluster.live
            )
            return Reaction((restart, training), Return.CHECKPOINT)
        back = Return.SAFE_POINT if died else Return.NOWHERE
        return Reaction((pause(Bucket.MOVING, self._constants.bamboo_pause, cluster.live), training), back)
