"""Dropping the pipeline: what torchft does. The other servers of a pipeline with a dead one wait for its repair."""

from typing import ClassVar

from recycle.study.buckets import Bucket
from recycle.study.cluster import Cluster
from recycle.study.constants import TYPICAL, Constants
from recycle.study.policy import Policy, Reaction, Return, pause, train
from recycle.study.rates import Ground, Rates


class Dropping(Policy):
    """Pipelines without a dead server train on, each with its own micro-batches: the global batch shrinks.

    Args:
        ground: what is trained.
        rates: of the job; nothing is taken from them.
        constants: what a reconfiguration takes.
    """

    name = "dropping"
    source: ClassVar[str] = "throughput: whole pipelines over all, with a smaller batch; oobleck-pause per failure"

    def __init__(self, ground: Ground, rates: Rates, constants: Constants = TYPICAL) -> None:
        self.interval = ground.iteration
        self._pause = constants.oobleck_pause

    def react(self, cluster: Cluster, died: bool) -> Reaction | None:
        """Leave pipelines with a dead server out."""
        pipelines = cluster.whole_pipelines
        training = train(pipelines / cluster.pipelines, pipelines * cluster.depth)
        if not died:
            return Reaction((training,))
        return Reaction((pause(Bucket.REPLANNING, self._pause, cluster.live), training), Return.SAFE_POINT)
