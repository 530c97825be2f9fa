"""What the ranks of a server do together: in what is made again after a failure, and around that."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from recycle.job import Server
from recycle.megatron.flag.world.collectives import Collectives, GroupCollectives, several
from recycle.megatron.flag.world.reductions import reduction_of
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.megatron.shared.torch_calls import Carrier


class SomeRanks(NamedTuple):
    """The calls of some of the ranks of a server, in the present view and no longer; a Carrier.

    Groups of other ranks of the server make the same calls at the same time, and all meet in one.

    Attributes:
        ranks: all.
        numbers: of those in the group.
    """

    ranks: RankCollectives
    numbers: tuple[int, ...]

    def reduce(self, tensor: torch.Tensor, how: Any) -> torch.Tensor:
        """See Carrier."""
        if len(self.numbers) == self.ranks.rank.size:
            return self.ranks.reduce(tensor, how)
        return reduction_of(how)(torch.stack(self.gather(tensor)))

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """See Carrier."""
        if len(self.numbers) == self.ranks.rank.size:
            return self.ranks.gather(tensor)
        if len(self.numbers) == 1:
            return [tensor.detach()]
        rows = self.ranks.gather_unequal(tensor)
        return [rows[number].view(tensor.shape) for number in self.numbers]


class RankCalls:
    """The calls of groups of ranks of one server.

    While a schedule computes, or a checkpoint is saved, a failure ends that, and the whole of it is made again. Around
    it there is nothing that would be made again, so calls are carried through failures like those of any other group.

    Args:
        server: which.
        ranks: carry out what is called in what is made again.
        around: carry out the rest.
    """

    def __init__(self, server: Server, ranks: RankCollectives, around: Collectives) -> None:
        self._server = server
        self._ranks = ranks
        self._around = around
        self._inside = False

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Within the block is what a failure ends, and what is made again."""
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def of(self, numbers: tuple[int, ...]) -> "GroupOfRanks":
        """Those of the group of some ranks."""
        return GroupOfRanks(self, numbers)

    def carrier(self, numbers: tuple[int, ...]) -> Carrier:
        """Who carries out the calls of the group of some ranks just now."""
        if self._inside:
            return SomeRanks(self._ranks, numbers)
        return GroupCollectives(self._around, (self._server,), several(numbers))


class GroupOfRanks(NamedTuple):
    """The calls of some ranks of a server; a Carrier.

    Attributes:
        calls: of all such groups.
        numbers: of the ranks.
    """

    calls: RankCalls
    numbers: tuple[int, ...]

    def reduce(self, tensor: torch.Tensor, how: Any) -> torch.Tensor:
        """See Carrier."""
        return self.calls.carrier(self.numbers).reduce(tensor, how)

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """See Carrier."""
        return self.calls.carrier(self.numbers).gather(tensor)
