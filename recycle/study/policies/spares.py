"""Spare servers: paid for all the time, and the job is whole while there are enough of them."""

from typing import ClassVar

from recycle.study.buckets import Bucket
from recycle.study.cluster import Cluster
from recycle.study.constants import TYPICAL, Constants
from recycle.study.policies.restarts import Checkpoints
from recycle.study.policy import Phase, Reaction
from recycle.study.rates import Ground, Rates


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
        if reaction is None or cluster.live < cluster.job or reaction.phases[0].bucket is not Bucket.RESTARTING:
            return reaction
        first: Phase = reaction.phases[0]._replace(seconds=self._warm)
        return reaction._replace(phases=(first, *reaction.phases[1:]))
