"""A store of torch's that is lost when a test says so."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import NamedTuple

from recycle.control.store.tcp_store import listen, serve


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
    """Within the block, there is such a store, unless it was lost."""
    listener = listen()
    host, port = listener.getsockname()

    def hold() -> None:
        server = serve(listener)
        while server is not None:
            signal.pause()

    def kill() -> None:
        process.kill()
        process.join()

    process = get_context("fork").Process(target=hold, daemon=True)
    process.start()
    listener.close()
    try:
        yield StoreApart(host, port, kill)
    finally:
        kill()
