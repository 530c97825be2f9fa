"""Relays of hosts that are all in one process, for tests and benchmarks."""

import asyncio
import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping

from recycle.control.store.relay import run_relay
from recycle.control.store.store import Store


@contextlib.contextmanager
def relays(hosts: Mapping[bytes, Callable[[], Store]]) -> Iterator[None]:
    """Serve some in a thread of its own.

    Args:
        hosts: what each one connects to, by the name where it listens.
    """
    begun: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    async def serve() -> None:
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        served = [asyncio.create_task(run_relay(name, connect)) for name, connect in hosts.items()]
        begun.put(lambda: _end(loop, end))
        await end.wait()
        # What is still under way is cancelled at the end.
        del served

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    end = begun.get()
    try:
        for name in hosts:
            _await(name)
        yield
    finally:
        end()
        thread.join()


def _end(loop: asyncio.AbstractEventLoop, end: asyncio.Event) -> None:
    loop.call_soon_threadsafe(end.set)


def _await(name: bytes) -> None:
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(name)
            return
