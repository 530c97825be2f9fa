"""Oobleck (SOSP'23): pipelines of unequal depth from templates, made ahead of time."""

from typing import ClassVar

from recycle.study.buckets import Bucket
from recycle.study.cluster import Cluster
from recycle.study.policy import Policy, Reaction, Return, pause, train


class Oobleck(Policy):
    """A change of servers is a pause and the loss of the iteration, with dead servers and with ones that come back."""

    name = "oobleck"
    source: ClassVar[str] = (
        "throughput: templates on the live servers (whole layers, fused 1F1B, micro-batches shared out); oobleck-pause "
        "per change; stops below half of the servers"
    )

    def react(self, cluster: Cluster, died: bool) -> Reaction | None:
        """Reconfigure at every change; wait where too few servers are left."""
        used = cluster.live
        if 2 * used < cluster.job:
            return Reaction((pause(Bucket.WAITING, float("inf"), used),), Return.SAFE_POINT)
        training = train(self._rates.templates(used), used)
        return Reaction((pause(Bucket.MOVING, self._constants.oobleck_pause, used), training), Return.SAFE_POINT)
