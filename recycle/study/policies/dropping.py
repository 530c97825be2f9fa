"""Dropping the pipeline: what torchft does. The other servers of a pipeline with a dead one wait for its repair."""

from typing import ClassVar

from recycle.study.buckets import Bucket
from recycle.study.cluster import Cluster
from recycle.study.policy import Policy, Reaction, Return, pause, train


class Dropping(Policy):
    """Pipelines without a dead server train on, each with its own micro-batches: the global batch shrinks."""

    name = "dropping"
    source: ClassVar[str] = "throughput: whole pipelines over all, with a smaller batch; oobleck-pause per failure"

    def react(self, cluster: Cluster, died: bool) -> Reaction | None:
        """Leave pipelines with a dead server out."""
        pipelines = cluster.whole_pipelines
        training = train(pipelines / cluster.pipelines, pipelines * cluster.depth)
        if not died:
            return Reaction((training,))
        failed = pause(Bucket.REPLANNING, self._constants.oobleck_pause, cluster.live)
        return Reaction((failed, training), Return.SAFE_POINT)
