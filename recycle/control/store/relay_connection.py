"""One member's connection to its host's relay, which may end, and be there again."""

import socket
import time
from contextlib import suppress
from weakref import finalize

import msgspec

from recycle.control.membership.doors import HostDoor
from recycle.control.store.closing import close_with
from recycle.control.store.relay_requests import HEAD, Answer, Request

AGAIN = 1.0
"""Seconds until a relay that was not there is looked for again."""

SLOW = 15.0
"""Seconds without an answer after which a relay is stopped, and not the store that it asks."""


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

    def ask(self, request: Request, timeout: float) -> Answer | None:
        """Ask it.

        Args:
            request: what.
            timeout: seconds for which it may wait for something.

        Returns:
            The answer; None where there is no relay, or none that answers.
        """
        if self._socket is None and time.monotonic() - self._looked < AGAIN:
            return None
        try:
            if self._socket is None:
                self._socket = self._door.connect(SLOW)
                self._hang_up = close_with(self, self._socket)
            self._socket.settimeout(timeout + SLOW)
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
