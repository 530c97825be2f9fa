"""What the ranks of a server do together in Megatron's code, carried out over the network of the present view.

Megatron finds process groups that are connected with nobody. What it calls in them while a list is executed goes to
groups that no view ends. All else goes to the group of the ranks that each view's network has: so it is given up with
the view, and made anew with the next.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.distributed import ReduceOp, Work

from recycle.control.membership.view import ServerRank
from recycle.megatron.shared.torch_calls import Calls, Carrier, reduction_of
from recycle.runtime.net.network import Group, Network
from recycle.runtime.net.process_groups import ReplaceableGroup
from recycle.runtime.net.stop_line import OwnGroup


class RankCollectives:
    """The collectives of one rank with the others of its server.

    Args:
        rank: of the server.

    Attributes:
        rank: see above.
    """

    def __init__(self, rank: ServerRank) -> None:
        self.rank = rank
        self._network: Network | None = None

    def take_over(self, group: ReplaceableGroup) -> None:
        """Carry out the calls of a group of all ranks from now on."""
        rank, size = group.counted
        assert size == self.rank.size, f"a group of {size} of {self.rank.size} ranks"
        start = partial(self.start, OwnGroup(tuple(range(size)), group.settings))
        group.hand_over((), Calls(self.carrier(tuple(range(size))), rank, size, start).carry_out)

    def connect(self, network: Network) -> None:
        """From now on, ranks meet in a view."""
        self._network = network

    def start(self, group: OwnGroup, name: str, *arguments: Any, **keywords: Any) -> Work | None:
        """Start a call among some ranks in a group that no view ends; None outside a list. See Line."""
        return None if self._network is None else self._network.line.start(group, name, *arguments, **keywords)

    def carrier(self, numbers: tuple[int, ...]) -> Carrier:
        """The calls of some of the ranks, in the present view and no longer.

        Groups of other ranks of the server make the same calls at the same time, and all meet in one.

        Args:
            numbers: of those in the group.
        """
        if len(numbers) == self.rank.size:
            return Carrier(self.gather, self.reduce)

        def gather(tensor: torch.Tensor) -> list[torch.Tensor]:
            if len(numbers) == 1:
                return [tensor.detach()]
            rows = self.gather_unequal(tensor)
            return [rows[number].view(tensor.shape) for number in numbers]

        return Carrier.by_gathering(gather)

    def reduce(self, tensor: torch.Tensor, how: Any) -> torch.Tensor:
        """See Carrier.

        Raises:
            ViewBroken: the view is over.
            RunError: nobody knows how.
        """
        in_place = next((act for each, act in self._reductions if how == each), None)
        if in_place is None:
            return reduction_of(how)(torch.stack(self.gather(tensor)))
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        in_place(result)
        return result

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """See Carrier.

        Raises:
            ViewBroken: the view is over.
        """
        mine = tensor.detach().contiguous()
        content = mine.reshape(-1).view(torch.uint8)
        table = torch.zeros(self.rank.size, len(content), dtype=torch.uint8, device=content.device)
        table[self.rank.number] = content
        self._group.sum(table)
        return [row.clone().view(mine.dtype).reshape(mine.shape) for row in table]

    def gather_unequal(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """What all put in, whose sizes may differ, each as one row of numbers.

        Raises:
            ViewBroken: the view is over.
        """
        mine = tensor.detach().reshape(-1)
        sizes = [int(each) for each in self.gather(torch.tensor([len(mine)]))]
        padded = mine.new_zeros(max(sizes))
        padded[: len(mine)] = mine
        return [row[:size] for row, size in zip(self.gather(padded), sizes, strict=True)]

    @property
    def _group(self) -> Group:
        assert self._network is not None, "ranks meet in a view, and there is none"
        return self._network.ranks

    @property
    def _reductions(self) -> Sequence[tuple[Any, Callable[[torch.Tensor], None]]]:
        return (ReduceOp.SUM, self._group.sum), (ReduceOp.MAX, self._group.maximum)
