"""What the ranks of a server do together: in what is made again after a failure, and around that."""

from collections.abc import Iterator
from contextlib import contextmanager

from recycle.job import Server
from recycle.megatron.flag.world.collectives import Collectives, several
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.megatron.shared.torch_calls import Carrier


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

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Within the block is what a failure ends, and what is made again."""
        self._around.inside = True
        try:
            yield
        finally:
            self._around.inside = False

    def of(self, numbers: tuple[int, ...]) -> Carrier:
        """Those of the group of some ranks."""
        return Carrier(
            lambda tensor: self._carrier(numbers).gather(tensor),
            lambda tensor, how: self._carrier(numbers).reduce(tensor, how),
        )

    def _carrier(self, numbers: tuple[int, ...]) -> Carrier:
        if self._around.inside:
            return self._ranks.carrier(numbers)
        return self._around.carrier((self._server,), several(numbers))
