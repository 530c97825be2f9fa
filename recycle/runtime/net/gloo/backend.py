"""One rank's part of a group of gloo's, whose end holds up nobody.

Gloo ends a group when nothing of it is under way any more, and then waits for its loop. The thread that lets go of the
group last would wait for both, and mostly that is one that has left it for the groups of a new view.

While a group ends, its loop closes the connections whose other ends are gone, and does not take them off the list that
it asks the kernel about. A connection that a fork of this process has as well, such as one that loads data, stays there
after that, and gloo ends the process when it hears of it. So they are cut before, while the loop takes them off.
"""

import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.distributed import AllreduceOptions, Store, Work

from recycle.runtime.net.gloo.listeners import Listener
from recycle.runtime.net.gloo.sockets import Connections
from recycle.threads import run_apart

_KEY = "0/{}"
"""Under which gloo has a rank's address in the store of its group."""


class Directory(Store):
    """The store that gloo sees: it holds what this process has learned of a group, and asks no other process."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, bytes] = {}

    def address(self, rank: int) -> bytes:
        """Where a rank listens, as gloo writes it. That of this process is there from the start."""
        return self.get(_KEY.format(rank))

    def learn(self, rank: int, address: bytes) -> None:
        """Note where a rank listens."""
        self.set(_KEY.format(rank), address)

    def set(self, key: str, value: str | bytes) -> None:
        """See torch's."""
        self._known[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        """See torch's. Gloo asks for what was learned before, so nothing is waited for."""
        return self._known[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """See get."""
        assert self._known.keys() >= set(keys), f"{keys} were not learned"


CLOSED_WITHIN = 1.0
"""Seconds for which the end of a group waits until gloo has closed its connections, which takes milliseconds."""

PAUSE = 0.005

ENDED_WITHIN = 5.0
"""Seconds for which the end of a process waits for that of a group. Python would end the group's thread when it comes
back from C++ later, and C++ would abort the process."""


class GlooBackend:
    """It ends in a thread of its own, whoever lets go of it.

    Args:
        backend: torch's own object; nobody else keeps it.
        rank: this one.
        names: what people call the ranks of the group.
        directory: where gloo finds their addresses.

    Attributes:
        names: see above.
        directory: see above.
        listener: where partners connect to this process.
    """

    def __init__(self, backend: Any, rank: int, names: Sequence[str], directory: Directory) -> None:
        self.names = names
        self.directory = directory
        self.listener = Listener()
        self._rank = rank
        # In a list, which is emptied at the end: so the last reference is where it is emptied.
        self._held = [backend]
        self._connections: list[Connections] = []
        end = partial(_end, self._held, self._connections)
        weakref.finalize(self, run_apart, end, "end of a group", ENDED_WITHIN).atexit = False

    @property
    def neighbours(self) -> list[str]:
        """What the ranks are called with which this one exchanges in reductions."""
        return [self.names[each] for each in sorted(neighbours(self._rank, len(self.names)))]

    def has(self, connections: Connections) -> None:
        """Note connections of this group."""
        self._connections.append(connections)

    def cut(self) -> None:
        """Shut down its connections. What waits for one of them, on either side, raises at once."""
        _cut(self._connections)

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


def _cut(connections: list[Connections]) -> None:
    for each in list(connections):
        each.cut()


def _end(held: list[Any], connections: list[Connections]) -> None:
    _cut(connections)
    end = time.monotonic() + CLOSED_WITHIN
    while any(each.open for each in connections) and time.monotonic() < end:
        time.sleep(PAUSE)
    held.clear()
