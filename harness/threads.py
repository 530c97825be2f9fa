"""Ranks that are threads of this process over the stand-in for NCCL, for what is about numbers alone."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple, Protocol

from torch.distributed import HashStore, Store

from harness.local import launch
from harness.stand_in import Library
from harness.stand_in_transport import ends_over
from recycle.runtime.net.connect import connect
from recycle.runtime.net.network import Network

PATIENCE = timedelta(seconds=600)


class Rank(Protocol):
    """A process of a run, or what stands for one.

    Attributes:
        rank: its number, from 0.
        count: how many processes there are.
    """

    rank: int
    count: int

    def store(self) -> Store:
        """A connection to the store where all processes find each other."""

    def report(self, content: bytes) -> None:
        """Send something to whoever watches the run."""


class Launch(Protocol):
    """Runs ranks to their end, as ``harness.local.launch`` does."""

    def __call__(self, count: int, body: Callable[[Rank], None], receive: Callable[[int, bytes], None]) -> None:
        """See there."""


class Ranks(NamedTuple):
    """How ranks run.

    Attributes:
        launch: runs them.
        connect: makes a network of theirs.
    """

    launch: Launch
    connect: Callable[..., Network]


PROCESSES = Ranks(launch, connect)


class _Failed(BaseException):
    """Another rank has failed."""


class ThreadRank:
    """A Rank."""

    def __init__(self, rank: int, count: int, store: Store, receive: Callable[[int, bytes], None]) -> None:
        self.rank = rank
        self.count = count
        self._store = store
        self._receive = receive

    def store(self) -> Store:
        """See there."""
        return self._store

    def report(self, content: bytes) -> None:
        """See there."""
        self._receive(self.rank, content)


def threads() -> Ranks:
    """Ranks that are threads. What they draw at random they draw from generators of their own."""
    errors: list[BaseException] = []

    def check() -> None:
        if errors:
            raise _Failed

    def launch_threads(count: int, body: Callable[[Rank], None], receive: Callable[[int, bytes], None]) -> None:
        store = HashStore()
        store.set_timeout(PATIENCE)

        def run(rank: int) -> None:
            try:
                body(ThreadRank(rank, count, store, receive))
            except _Failed:
                pass
            except BaseException as error:
                errors.append(error)

        running = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
        for each in running:
            each.start()
        for each in running:
            each.join()
        if errors:
            raise errors[0]

    return Ranks(launch_threads, ends_over(Library(check=check))[0])
