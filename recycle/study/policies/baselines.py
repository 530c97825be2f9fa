"""What re-routing is compared with beside restarts: Oobleck, Bamboo, and dropping the pipeline."""

from typing import ClassVar

from recycle.study.buckets import Bucket
from recycle.study.policy import Cluster, Policy, Reaction, Return, pause, train


class Oobleck(Policy):
    """A change of servers is a pause and the loss of the iteration, with dead servers and with ones that come back."""

    name = "oobleck"
    source: ClassVar[str] = (
        "throughput: templates on the live servers (whole layers, fused 1F1B, micro-batches shared out); oobleck-pause "
        "per change; stops below half of the servers; restart and disk-interval where all servers of a stage are dead"
    )

    def react(self, cluster: Cluster, died: bool) -> Reaction | None:
        """Reconfigure at every change; wait where too few servers are left."""
        used = cluster.live
        back = Return.CHECKPOINT if cluster.lost else Return.SAFE_POINT
        if 2 * used < cluster.job:
            return Reaction((pause(Bucket.WAITING, float("inf"), used),), back)
        training = train(self._rates.templates(used), used)
        moving = pause(Bucket.MOVING, self._constants.oobleck_pause, used)
        if cluster.lost:
            moving = pause(Bucket.RESTARTING, self._constants.restart, used)
        return Reaction((moving, training), back)


class Dropping(Policy):
    """Pipelines without a dead server train on, each with its own micro-batches: the global batch shrinks."""

    name = "dropping"
    source: ClassVar[str] = (
        "throughput: whole pipelines over all, with a smaller batch; oobleck-pause per pipeline that fails; restart "
        "and disk-interval where no pipeline is whole"
    )
    _pipelines = 0

    def react(self, cluster: Cluster, died: bool) -> Reaction | None:
        """Leave pipelines with a dead server out."""
        before, pipelines = self._pipelines, cluster.whole_pipelines
        self._pipelines = pipelines
        training = train(pipelines / cluster.pipelines, pipelines * cluster.depth)
        if pipelines and not before:
            restart = pause(Bucket.RESTARTING, self._constants.restart, cluster.live)
            return Reaction((restart, training), Return.CHECKPOINT)
        if not died or pipelines == before:
            return Reaction((training,))
        failed = pause(Bucket.REPLANNING, self._constants.oobleck_pause, cluster.live)
        return Reaction((failed, training), Return.SAFE_POINT)


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
