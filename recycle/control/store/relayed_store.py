"""The store as the members of a host ask for it: through the host's relay, and without it while there is none."""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import cast
from weakref import finalize

import msgspec

from recycle.control.membership.doors import HostDoor
from recycle.control.membership.errors import ControlError, StoreLost
from recycle.control.store.closing import close_with
from recycle.control.store.relay_requests import HEAD, Answer, Request, Result, Values
from recycle.control.store.store import Entries, Store

AGAIN = 1.0
"""Seconds until a relay that was not there is looked for again."""

SLOW = 15.0
"""Seconds without an answer after which a relay is stopped, and not the store that it asks."""


class RelayedStore(Store):
    """A connection to a store of which the members of a host ask together; see Store.

    Where the relay ends, what it had not answered is asked again without it. So requests may be carried out twice,
    which the store has to allow for.

    Args:
        door: where the relay listens.
        connect: to the store itself, or raises StoreLost.

    Raises:
        StoreLost: there is no store.
    """

    def __init__(self, door: HostDoor, connect: Callable[[], Store]) -> None:
        self._door = door
        self._connect = connect
        self._relay = RelayConnection(door)
        # While there is none.
        self._own: Store | None = None
        self._ask(Request("clone"))

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
        found = cast("bytes | None", self._ask(Request("wait", (key,), timeout=timeout)))
        # The time may have been over before the relay has looked.
        return self.get(key) if found is None else found

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
        return cast("bool", self._ask(Request("wait_entry", (log,), number=after, timeout=timeout)))

    def delete(self, key: str) -> None:
        """See Store."""
        self._ask(Request("delete", (key,)))

    def delete_all(self, outlived: Callable[[str], bool]) -> None:
        """See Store."""
        self._itself().delete_all(outlived)

    def clone(self) -> "RelayedStore":
        """See Store."""
        return RelayedStore(self._door, self._connect)

    def _ask(self, request: Request) -> Result:
        """Ask the relay, which gets the same from the store; where there is none, the store itself."""
        answer = self._relay.ask(request)
        if answer is None:
            return request.ask(self._itself(), request.timeout)
        self._own = None
        if answer.lost:
            raise StoreLost(answer.lost)
        if answer.refusal:
            raise ControlError(answer.refusal)
        return answer.result

    def _itself(self) -> Store:
        if self._own is None:
            self._own = self._connect()
        return self._own


class RelayConnection:
    """Asks a relay, as long as there is one.

    Args:
        door: where it listens.
    """

    def __init__(self, door: HostDoor) -> None:
        self._door = door
        self._socket: socket.socket | None = None
        self._hang_up: finalize[[], RelayConnection] | None = None
        self._looked = float("-inf")
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Answer)

    def ask(self, request: Request) -> Answer | None:
        """Ask it.

        Args:
            request: what.

        Returns:
            The answer; None where there is no relay, or none that answers.
        """
        if self._socket is None and time.monotonic() - self._looked < AGAIN:
            return None
        try:
            if self._socket is None:
                self._socket = self._door.connect(SLOW)
                self._hang_up = close_with(self, self._socket.close)
            self._socket.settimeout((request.timeout or 0.0) + SLOW)
            message = self._encoder.encode(request)
            self._socket.sendall(len(message).to_bytes(HEAD) + message)
            return self._decoder.decode(self._receive(self._socket))
        except OSError:
            self.close()
            self._looked = time.monotonic()
            return None

    def close(self) -> None:
        """Ask it no more, until somebody does."""
        if self._hang_up is not None:
            with suppress(OSError):
                self._hang_up()
            self._socket = self._hang_up = None

    def _receive(self, sender: socket.socket) -> bytes:
        """The answer, of which mostly all comes at once; nothing comes behind it."""
        received, size = bytearray(), HEAD
        while len(received) < size:
            part = sender.recv(1 << 16)
            if not part:
                raise ConnectionError("the relay has ended")
            received += part
            size = HEAD + int.from_bytes(received[:HEAD])
        return bytes(received[HEAD:])
