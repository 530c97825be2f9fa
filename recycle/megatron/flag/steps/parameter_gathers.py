"""Stepped parameters that peers give each other: at once, or while the next forward pass begins.

The latter is Megatron's ``--overlap-param-gather``: a module waits for the buckets of its own parameters, and for no
others. The buckets of the layers that compute first are gathered first.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch

from recycle.megatron.flag.steps.gradients import shares_within
from recycle.runtime.errors import ViewBroken
from recycle.runtime.net.network import Network, Share, Transfer


class Gather(NamedTuple):
    """A bucket that is under way.

    Attributes:
        parameters: in it.
        end: of the gather.
    """

    parameters: Collection[torch.nn.Parameter]
    end: Transfer


class ParameterGathers:
    """Those of one server.

    Args:
        model: all its chunks, in Megatron's DDP.
        overlaps: whether forward passes wait for what they need; otherwise the caller waits for all.

    Attributes:
        overlaps: see above.
    """

    def __init__(self, model: torch.nn.Module, *, overlaps: bool) -> None:
        self.overlaps = overlaps
        self._network: Network | None = None
        self._under_way: list[Gather] = []
        # That computations on a device come after, and the host has not waited for.
        self._ahead: list[Gather] = []
        for module in model.modules() if overlaps else ():
            own = frozenset(module.parameters(recurse=False))
            if own:
                module.register_forward_pre_hook(partial(self._before, own))

    def enter(self, network: Network) -> None:
        """Forget the gathers of the last view."""
        self._network, self._under_way, self._ahead = network, [], []

    def start(self, buffer: Any, shares: Sequence[Share]) -> None:
        """Start to give all peers what the first holders have of a buffer's parameters; what a holder has stays.

        Args:
            buffer: Megatron's; it must stay as it is until it was waited for.
            shares: of the buffer.
        """
        assert self._network is not None, "it is in no view"
        for bucket in reversed(buffer.buckets):
            place = slice(bucket.offset, bucket.offset + bucket.param_data.numel())
            end = self._network.start_spread(buffer.param_data[place], shares_within(place, shares))
            self._under_way.append(Gather(bucket.params, end))

    def wait(self) -> None:
        """Have all parameters here.

        Raises:
            ViewBroken: a peer is gone; gathers can be started again in the next view.
        """
        due, self._under_way, self._ahead = [*self._ahead, *self._under_way], [], []
        with self._bearing():
            for each in due:
                each.end.wait()

    def _before(self, own: frozenset[torch.nn.Parameter], *_: Any) -> None:
        """A module is about to compute that has some parameters itself."""
        due = [each for each in self._under_way if not own.isdisjoint(each.parameters)]
        if due:
            self._under_way = [each for each in self._under_way if own.isdisjoint(each.parameters)]
            self._precede(due)

    def _precede(self, due: Sequence[Gather]) -> None:
        with self._bearing():
            self._ahead += [each for each in due if not each.end.precede()]

    @contextmanager
    def _bearing(self) -> Iterator[None]:
        """Within the block, a gather that fails is the last one."""
        try:
            yield
        except ViewBroken as error:
            self._under_way, self._ahead = [], []
            assert self._network is not None, "what is under way is so in a view"
            self._network.line.bear(error)
