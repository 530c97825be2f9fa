"""One rank's part of a group of gloo's, whose end holds up nobody.

Gloo ends a group when nothing of it is under way any more. What was given up may be under way until its time-out, and
whoever lets go of the group last would wait for that: mostly a thread that has left it for the groups of a new view.
"""

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import AllreduceOptions, Work


class GlooBackend:
    """It ends in a thread of its own, whoever lets go of it.

    Args:
        backend: torch's own object; nobody else keeps it.
        rank: this one.
        names: what people call the ranks of the group.

    Attributes:
        names: see above.
    """

    def __init__(self, backend: Any, rank: int, names: Sequence[str]) -> None:
        self.names = names
        self._rank = rank
        # In a list, which is emptied at the end: so the last reference is where it is emptied.
        self._held = [backend]
        weakref.finalize(self, _end_apart, self._held).atexit = False

    @property
    def neighbours(self) -> list[str]:
        """What the ranks are called with which this one exchanges in reductions."""
        return [self.names[each] for each in sorted(neighbours(self._rank, len(self.names)))]

    def allreduce(self, tensors: list[torch.Tensor], options: AllreduceOptions | None = None) -> Work:
        """See torch's."""
        work: Work = self._held[0].allreduce(tensors, *([] if options is None else [options]))
        return work

    def send(self, tensors: list[torch.Tensor], partner: int, tag: int) -> Work:
        """See torch's."""
        work: Work = self._held[0].send(tensors, partner, tag)
        return work

    def recv(self, tensors: list[torch.Tensor], partner: int, tag: int) -> Work:
        """See torch's."""
        work: Work = self._held[0].recv(tensors, partner, tag)
        return work


def neighbours(rank: int, size: int) -> set[int]:
    """With whom a rank exchanges in gloo's reductions, which go round a ring."""
    return {(rank + 1) % size, (rank - 1) % size} - {rank}


def _end_apart(held: list[Any]) -> None:
    threading.Thread(target=held.clear, name="end of a group", daemon=True).start()
