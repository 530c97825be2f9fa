"""What the ranks of a server do together: in what is made again after a failure, and around that."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from recycle.megatron.shared.torch_calls import Carrier


class RankCalls:
    """The calls of the group of all ranks of a server; a Carrier.

    While a schedule computes, or a checkpoint is saved, a failure ends that, and the whole of it is made again. Around
    it there is nothing that would be made again, so calls are carried through failures like those of any other group.

    Args:
        inside: carries out what is called in what is made again.
        around: carries out the rest.
    """

    def __init__(self, inside: Carrier, around: Carrier) -> None:
        self._inside = inside
        self._around = around
        self._carrier = around

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Within the block is what a failure ends, and what is made again."""
        self._carrier = self._inside
        try:
            yield
        finally:
            self._carrier = self._around

    def reduce(self, tensor: torch.Tensor, how: Any) -> torch.Tensor:
        """See Carrier."""
        return self._carrier.reduce(tensor, how)

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """See Carrier."""
        return self._carrier.gather(tensor)
