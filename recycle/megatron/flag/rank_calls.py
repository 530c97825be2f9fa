"""What the ranks of a server do together: while they compute, and around that."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from recycle.megatron.shared.torch_calls import Carrier


class RankCalls:
    """The calls of the group of all ranks of a server; a Carrier.

    While a schedule computes, a failure ends it, and the whole iteration is made again. Around it there is nothing that
    would be made again, so calls are carried through failures like those of any other group.

    Args:
        inside: carries out what is called while the server computes.
        around: carries out the rest.
    """

    def __init__(self, inside: Carrier, around: Carrier) -> None:
        self._inside = inside
        self._around = around
        self._carrier = around

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Within the block, a schedule computes."""
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
