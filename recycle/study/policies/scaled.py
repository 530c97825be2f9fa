"""Every live server at its share of the work: no policy, and drawn beside them."""

from typing import ClassVar

from recycle.study.cluster import Cluster
from recycle.study.policy import Policy, Reaction, train


class FaultScaled(Policy):
    """Throughput by the share of live servers, with no pause and nothing lost.

    Where bubbles are left in the fault-free schedule, re-routing can be above it.
    """

    name = "fault-scaled"
    source: ClassVar[str] = "live servers over all servers"
    model_only: ClassVar[bool] = True

    def react(self, cluster: Cluster, died: bool) -> Reaction | None:
        """Nothing but another rate."""
        return Reaction((train(cluster.live / cluster.job, cluster.live),))
