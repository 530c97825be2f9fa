"""What two processes of a run tell each other over a connection: small sealed messages.

A seal holds for one message in one direction of one connection, so that it is of no use to who overhears it.
"""

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import ClassVar, TypeVar

import msgspec

from recycle.control.membership.doors import Guest
from recycle.control.membership.errors import ChannelLost, ControlError
from recycle.control.membership.messages import LARGEST_MESSAGE, seal, unseal
from recycle.control.store.closing import close_with

_AT_ONCE = 1024
"""So many pieces of memory the kernel takes in one call."""

_LENGTH = struct.Struct("!I")
_LARGEST = LARGEST_MESSAGE + 64
_STEP = 1 << 16
_T = TypeVar("_T")


class SealedChannel:
    """One side of a connection.

    Args:
        guest: the connection, of which both sides have proved that they have the token; closed with the channel.
        token: the run's.
        name: of this side.
        other: of the other side.
    """

    lost: ClassVar[type[ChannelLost]] = ChannelLost
    """What is raised where the other side is gone."""

    def __init__(self, guest: Guest, token: str, name: str, other: str) -> None:
        self._connection = guest.connection
        self._token = token
        self._keys = {each: f"{guest.session.hex()}/{each}" for each in (name, other)}
        self._counts = dict.fromkeys((name, other), 0)
        self._name = name
        self._other = other
        # Another process that has it as well goes on with it.
        close_with(self, guest.connection.close)

    def close(self) -> None:
        """Let go of it; whatever waits in it fails."""
        with suppress(OSError):  # the other side may be gone
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def be_patient(self, seconds: float | None) -> None:
        """Give the other side up after so many seconds without a byte from now on; None for never."""
        self._connection.settimeout(seconds)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message.

        Raises:
            ChannelLost: the other side is gone.
        """
        sealed = seal(self._token, self._next_key(self._name), message)
        self.send_bytes([memoryview(_LENGTH.pack(len(sealed)) + sealed)])

    def receive(self, kind: type[_T]) -> _T:
        """Receive a message.

        Args:
            kind: what it must be.

        Raises:
            ChannelLost: the other side is gone, or says what is not sealed.
        """
        try:
            (length,) = _LENGTH.unpack(self._receive(_LENGTH.size))
            if length > _LARGEST:
                raise self.lost(f"the other side announces a message of {length} bytes")
            return unseal(self._token, self._next_key(self._other), self._receive(length), kind)
        except (OSError, ControlError) as error:
            raise self.lost(f"the other side says nothing that can be used: {error}") from error

    def send_bytes(self, pieces: Sequence[memoryview]) -> None:
        """Send some memory as it is, in as few calls as it takes: each wakes the other side.

        Raises:
            ChannelLost: the other side is gone.
        """
        with self._other_side():
            left = [*pieces]
            while left:
                sent = self._connection.sendmsg(left[:_AT_ONCE])
                while left and sent >= len(left[0]):
                    sent -= len(left.pop(0))
                if sent:
                    left[0] = left[0][sent:]

    def _receive(self, length: int) -> bytes:
        # It takes as much memory as has come, and not as was announced.
        content = bytearray()
        while len(content) < length:
            part = self._connection.recv(min(length - len(content), _STEP))
            if not part:
                raise ConnectionResetError("it has ended")
            content += part
        return bytes(content)

    def _next_key(self, side: str) -> str:
        self._counts[side] += 1
        return f"{self._keys[side]}/{self._counts[side]}"

    @contextmanager
    def _other_side(self) -> Iterator[None]:
        """Within the block, a connection that fails is the loss of the other side."""
        try:
            yield
        except OSError as error:
            raise self.lost(f"the other side is gone: {error}") from error
