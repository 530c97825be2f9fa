"""A store as the members of a host ask for it: through a process of that host."""

import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import ceil
from typing import TypeVar, cast
from weakref import finalize

import msgspec

from recycle.control.membership.doors import HostDoor
from recycle.control.membership.errors import ControlError, StoreLost
from recycle.control.store.closing import close_with
from recycle.control.store.host_requests import HEAD, Answer, Request, Result, Values, framed
from recycle.control.store.store import Entries, Store

AGAIN = 1.0
"""Seconds until a process that was not there is looked for again."""

KNOCK = 5.0
"""Seconds that it may take to get in among many others."""

SLICE = 1.0
"""Seconds of waiting that are counted at once."""

_T = TypeVar("_T")


class HostStore(Store):
    """Makes one request of each of Store's methods."""

    @abstractmethod
    def _ask(self, request: Request) -> Result:
        """Ask for something.

        Raises:
            StoreLost: there is no store.
            ControlError: it refuses that.
        """

    def set_many(self, values: Mapping[str, bytes]) -> None:
        """See Store."""
        self._ask(Request("set_many", tuple(values), tuple(values.values())))

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """See Store."""
        return cast("Values", self._ask(Request("get_many", tuple(keys))))

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """See Store."""
        return cast("bytes", self._ask(Request("compare_set", (key,), (expected, desired))))

    def wait(self, key: str, timeout: float) -> bytes | None:
        """See Store."""
        return cast("bytes | None", self._ask(Request("wait", (key,), timeout=timeout)))

    def hear(self, key: str, timeout: float) -> bytes | None:
        """See Store."""
        return cast("bytes | None", self._ask(Request("hear", (key,), timeout=timeout)))

    def append(self, log: str, *entries: bytes) -> None:
        """See Store."""
        self._ask(Request("append", (log,), entries))

    def entries(self, log: str, after: int) -> Entries:
        """See Store."""
        return cast("Entries", self._ask(Request("entries", (log,), number=after)))

    def wait_entry(self, log: str, after: int, timeout: float) -> bool:
        """See Store."""
        return bool(self._ask(Request("wait_entry", (log,), number=after, timeout=timeout)))

    def delete(self, key: str) -> None:
        """See Store."""
        self._ask(Request("delete", (key,)))


class HostConnection:
    """Asks a process of this host, as long as there is one.

    Args:
        door: where it listens.
        patience: seconds without an answer after which that process is stopped, and not what it asks itself.

    Attributes:
        patience: as above.
    """

    def __init__(self, door: HostDoor, patience: float) -> None:
        self._door = door
        self.patience = patience
        self._socket: socket.socket | None = None
        self._hang_up: finalize[[], HostConnection] | None = None
        self._looked = float("-inf")
        self._decoder = msgspec.msgpack.Decoder(Answer)

    def ask(self, request: Request) -> Answer | None:
        """Ask it.

        Args:
            request: what.

        Returns:
            The answer; None if there is no such process, or none that answers.
        """
        if self._socket is None and time.monotonic() - self._looked < AGAIN:
            return None
        try:
            if self._socket is None:
                self._socket = self._door.connect(min(self.patience, KNOCK))
                self._socket.settimeout(SLICE)
                self._hang_up = close_with(self, self._socket.close)
            patience = _Patience((request.timeout or 0.0) + self.patience)
            _send(self._socket, framed(request), patience)
            return self._decoder.decode(_receive(self._socket, patience))
        except OSError:
            self.close()
            self._looked = time.monotonic()
            return None
        except BaseException:
            # What is answered to this request must not be taken for the answer to the next one.
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next request makes another one."""
        if self._hang_up is not None:
            with suppress(OSError):
                self._hang_up()
            self._socket = self._hang_up = None


class _Patience:
    """So many seconds. A pause of the whole run counts for one: both ends go on at the same moment after it."""

    def __init__(self, seconds: float) -> None:
        self._slices = ceil(seconds / SLICE)

    def keep(self, act: Callable[[], _T]) -> _T:
        """Try something that gives up after a slice."""
        while True:
            try:
                return act()
            except TimeoutError:
                self._slices -= 1
                if self._slices <= 0:
                    raise


def _send(receiver: socket.socket, message: bytes, patience: _Patience) -> None:
    left = memoryview(message)
    while left:
        left = left[patience.keep(partial(receiver.send, left)) :]


def _receive(sender: socket.socket, patience: _Patience) -> bytes:
    """An answer, of which mostly all comes at once; nothing comes behind it."""
    received, size = bytearray(), HEAD
    while len(received) < size:
        part = patience.keep(partial(sender.recv, 1 << 16))
        if not part:
            raise ConnectionError("the process has ended")
        received += part
        size = HEAD + int.from_bytes(received[:HEAD])
    return bytes(received[HEAD:])


def result_of(answer: Answer) -> Result:
    """What was answered.

    Raises:
        StoreLost: there is no store.
        ControlError: it refuses what was asked.
    """
    if answer.lost:
        raise StoreLost(answer.lost)
    if answer.refusal:
        raise ControlError(answer.refusal)
    return answer.result
