"""Ranks that are threads of this process over the stand-in for NCCL, for what is about numbers alone."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from typing import Any, NamedTuple, Protocol

import pytest
from torch.distributed import HashStore, Store

from harness.local import launch
from harness.stand_in import Library
from harness.stand_in_transport import ends_over
from recycle.runtime.execute import seeds
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
        with _one_in_the_generators():
            for each in running:
                each.start()
            for each in running:
                each.join()
        if errors:
            raise errors[0]

    return Ranks(launch_threads, ends_over(Library(check=check))[0])


@contextmanager
def _one_in_the_generators() -> Iterator[None]:
    """Let one thread at a time ask for, seed or restore what is drawn from.

    Torch locks its generator while it makes Python objects. If garbage is collected there, another thread runs, and
    waits for that lock without letting go of the interpreter: then all wait for ever.
    """
    lock = threading.Lock()

    def alone(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def within(*arguments: Any) -> Any:
            with lock:
                return call(*arguments)

        return within

    with pytest.MonkeyPatch.context() as patch:
        for name in ("state_of_generators", "seed_generators", "restore_generators"):
            patch.setattr(seeds, name, alone(getattr(seeds, name)))
        yield
