"""One rank's part of a group of gloo's, whose end holds up nobody.

Gloo ends a group when nothing of it is under way any more. What was given up may be under way until its time-out, and
whoever lets go of the group last would wait for that: mostly a thread that has left it for the groups of a new view.
"""

import threading
import weakref
from typing import Any

import torch
from torch.distributed import AllreduceOptions, Work


class GlooBackend:
    """It ends in a thread of its own, whoever lets go of it.

    Args:
        backend: torch's own object; nobody else keeps it.
    """

    def __init__(self, backend: Any) -> None:
        # In a list, which is emptied at the end: so the last reference is where it is emptied.
        self._held = [backend]
        weakref.finalize(self, _end_apart, self._held).atexit = False

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


def _end_apart(held: list[Any]) -> None:
    threading.Thread(target=held.clear, name="end of a group", daemon=True).start()
