"""What layers with experts report beside the loss: the same on all peers, so that Megatron's sums are right.

Megatron adds such losses up on each rank, layer by layer, and takes the mean over data-parallel ranks where it prints
them. Peers that do the work of dead servers would have too much. So after each iteration all have the mean over all
pipelines.
"""

from collections.abc import Mapping

import torch
from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker as reported

from recycle.runtime.net.network import Group


def hand_over() -> dict[str, torch.Tensor]:
    """What this rank's layers have reported since the last line that was printed: of each layer, by name."""
    return {name: each["values"] for name, each in reported().items()}


def take_over(losses: Mapping[str, torch.Tensor]) -> None:
    """Go on with what a peer's layers have reported since the last line that was printed.

    Megatron makes a place for a loss when a layer reports it, and on all ranks when it prints a line; peers sum what
    they have a place for, so all need the same ones.

    Args:
        losses: of each layer, by name.
    """
    for name, values in losses.items():
        unknown = {"reduce_group": None, "avg_group": None, "reduce_group_has_dp": False}
        reported().setdefault(name, unknown)["values"] = values.clone()


class AuxiliaryLosses:
    """Those of one server's layers since the last line that was printed.

    Args:
        pipelines: D of the full job.
    """

    def __init__(self, pipelines: int) -> None:
        self._pipelines = pipelines
        self._step = -1
        self._before: dict[str, torch.Tensor] = {}

    def begin(self, step: int) -> None:
        """An iteration begins, or is made again."""
        if step != self._step:
            self._before = {name: each["values"].clone() for name, each in reported().items()}
            self._step = step
        for name, each in reported().items():
            if name in self._before:
                each["values"].copy_(self._before[name])
            else:
                each["values"].zero_()

    def share(self, peers: Group) -> None:
        """At its end, have what it added everywhere; all peers come here.

        Args:
            peers: of the view.

        Raises:
            ViewBroken: somebody is gone.
        """
        for name, each in sorted(reported().items()):
            before = self._before.get(name, torch.zeros_like(each["values"]))
            added = (each["values"] - before).double()
            peers.sum(added)
            each["values"].copy_(before + added / self._pipelines)
