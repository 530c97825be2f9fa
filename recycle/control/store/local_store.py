"""The store of a run on one machine: a process that holds it in memory, at a socket that no other user gets through."""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence

from recycle.control.membership.doors import HostDoor
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.open_files import not_reached, why_no_file_opens
from recycle.control.store.host_requests import Answer, Request, Result, Values, framed
from recycle.control.store.host_server import Caller, HostServer
from recycle.control.store.host_store import HostConnection, HostStore, result_of
from recycle.control.store.store import Entries

STOPPED = 60.0
"""Seconds that the store's process may be stopped."""

_REFUSED = (TypeError, ValueError, IndexError)
"""It is no request that a store knows."""


def door_of_store(token: str) -> HostDoor:
    """Where the store of a run on one machine listens.

    Args:
        token: the run's.
    """
    return HostDoor(token, "store")


def serve_store(listener: socket.socket) -> None:
    """Hold a store, for as long as this process lives.

    Args:
        listener: of its door.
    """
    asyncio.run(_Server().serve(listener))


class LocalStore(HostStore):
    """A connection to the store of a run on one machine. Once it has found it lost, it does not look for a new one.

    Args:
        door: where it listens.
        patience: seconds that its process may be stopped while this connects.

    Raises:
        StoreLost: there is none.
    """

    def __init__(self, door: HostDoor, patience: float = STOPPED) -> None:
        self._door = door
        connection = HostConnection(door, patience)
        self._connection: HostConnection | None = connection
        self._ask(Request("clone"))
        connection.patience = STOPPED

    def delete_all(self, outlived: Callable[[str], bool]) -> None:
        """See Store."""
        names = self._ask(Request("keys"))
        assert isinstance(names, list), "they are told as one"
        found = [*filter(outlived, (each.decode() for each in names if each is not None))]
        if found:
            self._ask(Request("delete", tuple(found)))

    def clone(self) -> "LocalStore":
        """See Store."""
        return LocalStore(self._door)

    def _ask(self, request: Request) -> Result:
        answer = None if self._connection is None else self._connection.ask(request)
        if answer is None:
            self._connection = None
            raise StoreLost(f"the store at a socket of this machine {not_reached(why_no_file_opens())}")
        return result_of(answer)


class _Server(HostServer):
    """Answers from memory, and so at once."""

    def __init__(self) -> None:
        super().__init__()
        self._contents = _Contents()

    def take(self, request: Request, caller: Caller) -> None:
        """See HostServer."""
        seconds = None if request.timeout is None else 0.0
        try:
            answer = Answer(request.ask(self._contents, seconds))
        except _REFUSED as error:
            answer = Answer(refusal=str(error))
        if request.timeout is not None and answer in _NOTHING:
            self._begin_wait(request, caller, request.timeout)
            return
        caller.answer(framed(answer))
        if request.method in ("set_many", "append", "compare_set"):
            self._end_waits()

    def _end_waits(self) -> None:
        """Answer all whose wait is over because something was stored, and forget what nobody waits for any more."""
        for each, callers in [*self._waits.items()]:
            answer = Answer(each.ask(self._contents, 0.0))
            if answer not in _NOTHING or not callers:
                self._end_wait(each, answer)


_NOTHING = (Answer(), Answer(False))
"""What is waited for is not there."""


class _Contents:
    """What the store holds: see Store, of which it has what is asked over a connection."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._logs: dict[str, list[bytes]] = {}

    def set_many(self, values: Mapping[str, bytes]) -> None:
        self._values.update(values)

    def get_many(self, keys: Sequence[str]) -> Values:
        return [*map(self._values.get, keys)]

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        if self._values.get(key, b"") == expected:
            self._values[key] = desired
        return self._values.get(key, b"")

    def wait(self, key: str, _: float) -> bytes | None:
        return self._values.get(key)

    hear = wait

    def append(self, log: str, *entries: bytes) -> None:
        self._logs.setdefault(log, []).extend(entries)

    def entries(self, log: str, after: int) -> Entries:
        stored = self._logs.get(log, [])
        last = max(after, len(stored))
        return Entries([*enumerate(stored[after:], after + 1)], last, last)

    def wait_entry(self, log: str, after: int, _: float) -> bool:
        return len(self._logs.get(log, [])) > after

    def delete(self, *keys: str) -> None:
        for each in keys:
            self._values.pop(each, None)
            self._logs.pop(each, None)

    def keys(self) -> Values:
        return [each.encode() for each in (*self._values, *self._logs)]

    def clone(self) -> None:
        """There is a store."""
