"""Relays of hosts that are all in one process, for tests and benchmarks."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping

from recycle.control.membership.doors import HostDoor
from recycle.control.store.relay import run_relay
from recycle.control.store.store import Store


@contextlib.contextmanager
def relays(hosts: Mapping[HostDoor, Callable[[], Store]]) -> Iterator[None]:
    """Serve some in a thread of its own.

    Args:
        hosts: what each one connects to, by the door where it listens.
    """
    begun: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    async def serve() -> None:
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        served = [asyncio.create_task(run_relay(door, connect)) for door, connect in hosts.items()]
        begun.put(lambda: _end(loop, end))
        await end.wait()
        # A loop keeps no task alive that only waits: nobody else has these.
        for each in served:
            each.cancel()
        await asyncio.gather(*served, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    end = begun.get()
    try:
        for door in hosts:
            _await(door)
        yield
    finally:
        end()
        thread.join()


def _end(loop: asyncio.AbstractEventLoop, end: asyncio.Event) -> None:
    loop.call_soon_threadsafe(end.set)


def _await(door: HostDoor) -> None:
    while True:
        with contextlib.suppress(ConnectionRefusedError), door.connect():
            return
