"""What the ranks of a server do together in Megatron's code, carried out over the network of the present view.

Megatron finds process groups that are connected with nobody. Whatever it calls in them goes to the group of the ranks
that each view's network has: so it is given up with the view, and made anew with the next.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp, Work

from recycle.control.membership.view import ServerRank
from recycle.megatron.shared.torch_calls import Calls, Carrier, OwnCalls, Pairs
from recycle.runtime.errors import RunError
from recycle.runtime.net.network import Group, Network
from recycle.runtime.net.process_groups import ReplaceableGroup

BACKEND = "recycle"
"""What torch calls these groups' kind."""


class RankCollectives:
    """The collectives of one rank; a Carrier for groups of all ranks of its server.

    Args:
        rank: of the server.

    Attributes:
        rank: see above.
    """

    def __init__(self, rank: ServerRank) -> None:
        self.rank = rank
        self._network: Network | None = None
        self._pairs: list[Pairs] = []

    def register(self) -> None:
        """Have torch make such groups where the backend is so called."""
        # The backend takes arguments by their place.
        dist.Backend.register_backend(BACKEND, self._make, devices=["cpu", "cuda"])

    def connect(self, network: Network) -> None:
        """From now on, ranks meet in a view."""
        self._network = network
        for each in self._pairs:
            each.drop()

    def start(self, numbers: tuple[int, ...], name: str, *arguments: Any, **keywords: Any) -> Work | None:
        """Start a call among some ranks in a group that no view ends; None outside a list. See Line."""
        return None if self._network is None else self._network.line.start(numbers, name, *arguments, **keywords)

    def reduce(self, tensor: torch.Tensor, how: Any) -> torch.Tensor:
        """See Carrier.

        Raises:
            ViewBroken: the view is over.
            RunError: it is a reduction that nobody uses.
        """
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        self._reduction(how)(result)
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

    def _reduction(self, how: Any) -> Callable[[torch.Tensor], None]:
        if how == ReduceOp.SUM:
            return self._group.sum
        if how == ReduceOp.MAX:
            return self._group.maximum
        raise RunError(f"torch.distributed: a reduction by {how.op.name} among the ranks of a server is not offered")

    def _make(self, _: dist.Store, rank: int, size: int, __: timedelta) -> ReplaceableGroup:
        group = ReplaceableGroup(rank, size)
        carrier: Carrier = self if size > 1 else Oneself()
        assert size in (1, self.rank.size), f"a group of {size} of {self.rank.size} ranks"
        pairs = Pairs(carrier, rank)
        self._pairs.append(pairs)
        carried = Calls(carrier, rank, size, pairs)
        own = OwnCalls(partial(self.start, tuple(range(size))), carried) if size > 1 else carried
        group.hand_over((), own.carry_out)
        return group


class Oneself:
    """A Carrier for groups of one."""

    def reduce(self, tensor: torch.Tensor, _: Any) -> torch.Tensor:
        """See Carrier."""
        return tensor

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """See Carrier."""
        return [tensor]
