"""What layers with experts report beside the loss: the same on all peers, so that Megatron's sums are right.

Megatron adds such losses up on each rank, layer by layer, and takes the mean over data-parallel ranks where it prints
them. Peers that do the work of dead servers would have too much. So after each iteration all have the mean over all
pipelines.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from megatron.core.transformer.moe import moe_utils

from recycle.megatron.shared.release import module_with
from recycle.runtime.device import own_device
from recycle.runtime.net.network import Group

TRACKER = "get_moe_metrics_tracker"
"""What has them, in the releases that have it; in others, a dictionary has."""


def reported() -> dict[str, torch.Tensor]:
    """What this rank's layers have reported since the last line that was printed: of each layer, by name.

    These are the tensors that Megatron adds up in.
    """
    logging = module_with(TRACKER)
    if logging is not None:
        return {name: each.values for name, each in logging.get_moe_metrics_tracker().metrics.items()}
    return {name: each["values"] for name, each in moe_utils.get_moe_layer_wise_logging_tracker().items()}


def take_over(losses: Mapping[str, torch.Tensor]) -> None:
    """Go on with what a peer's layers have reported since the last line that was printed.

    Megatron makes a place for a loss when a layer reports it, and on all ranks when it prints a line; peers sum what
    they have a place for, so all need the same ones.

    Args:
        losses: of each layer, by name.
    """
    for name, values in losses.items():
        if name not in reported():
            _make_place(name, values)
        reported()[name].copy_(values)


def _make_place(name: str, like: torch.Tensor) -> None:
    logging, device = module_with(TRACKER), own_device()
    if logging is not None:
        logging.get_moe_metrics_tracker().ensure_initialized(name, len(like), device)
    else:
        place = {
            "values": torch.zeros_like(like, device=device),
            "reduce_group": None,
            "avg_group": None,
            "reduce_group_has_dp": False,
        }
        moe_utils.get_moe_layer_wise_logging_tracker()[name] = place


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
            self._before = {name: each.clone() for name, each in reported().items()}
            self._step = step
        for name, each in reported().items():
            if name in self._before:
                each.copy_(self._before[name])
            else:
                each.zero_()

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Within the block, an iteration is made again that the training code has gone on from: it has counted."""
        step, before = self._step, self._before
        present = {name: each.clone() for name, each in reported().items()}
        yield
        self._step, self._before = step, before
        for name, each in reported().items():
            each.copy_(present.get(name, torch.zeros_like(each)))

    def share(self, peers: Group) -> None:
        """At its end, have what it added everywhere; all peers come here.

        Args:
            peers: of the view.

        Raises:
            ViewBroken: somebody is gone.
        """
        pairs = [(each, self._before.get(name, torch.zeros_like(each))) for name, each in sorted(reported().items())]
        if not pairs:
            return
        added = torch.cat([(each - before).double().reshape(-1) for each, before in pairs])
        peers.sum(added)
        parts = torch.split(added, [each.numel() for each, _ in pairs])
        for (each, before), part in zip(pairs, parts, strict=True):
            each.copy_(before + part.view_as(each) / self._pipelines)
