"""Stores in processes of their own, which are lost when a test says so."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import NamedTuple

from recycle.control.membership.doors import HostDoor
from recycle.control.store.tcp_store import listen
from recycle.runtime.launch.process.fork_server import serve_until_killed


class StoreApart(NamedTuple):
    """A store in a process of its own.

    Attributes:
        host: where it listens.
        port: at which it does.
        kill: loses it.
    """

    host: str
    port: int
    kill: Callable[[], None]


@contextmanager
def store_apart() -> Iterator[StoreApart]:
    """Within the block, there is such a store of torch's, unless it was lost."""
    listener = listen()
    host, port = listener.getsockname()
    with _apart(listener) as kill:
        yield StoreApart(host, port, kill)


@contextmanager
def local_store(door: HostDoor) -> Iterator[Callable[[], None]]:
    """Within the block, there is a store of this machine at its door; gives what loses it."""
    with _apart(door.hold(0.0)) as kill:
        yield kill


@contextmanager
def _apart(listener: socket.socket) -> Iterator[Callable[[], None]]:
    def kill() -> None:
        process.kill()
        process.join()

    process = get_context("fork").Process(target=serve_until_killed, args=(listener,), daemon=True)
    process.start()
    listener.close()
    try:
        yield kill
    finally:
        kill()
