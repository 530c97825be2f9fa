"""What trainers and keepers tell each other: small sealed messages, and a part between them.

On one host that is the memory in which it is kept, handed over; between hosts its bytes.

A seal holds for one message in one direction of one connection, so that it is of no use to who overhears it.
"""

import secrets
import select
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Self, TypeVar

import msgspec

from recycle.control.membership.addresses import family_of
from recycle.control.membership.errors import ControlError
from recycle.control.membership.messages import LARGEST_MESSAGE, read_early, seal, unseal
from recycle.control.store.closing import close_with
from recycle.state.errors import KeeperLost
from recycle.state.ladder import StatePart
from recycle.state.segment import Segment

PATIENCE = 5.0
"""Seconds without a byte after which a trainer gives a keeper up; a keeper has the time of its trainers, once it knows
them."""

REACH = 2.0
"""Seconds after which a host is given up that takes no connection: its kernel does that, however busy it is."""

Address = str | tuple[str, int]
"""Of a keeper: a name in this host's kernel, or where other hosts reach it."""

_AT_ONCE = 1024
"""So many pieces of memory the kernel takes in one call."""

_MISSED = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3))

_LENGTH = struct.Struct("!I")
_LARGEST = LARGEST_MESSAGE + 64
_NONCE = 16
_HANDED = b"m"
_T = TypeVar("_T")


class Offer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="offer"):
    """A part comes, and then a Commit.

    On one host it goes into the memory that follows the answer; from another one, so many bytes follow.

    Attributes:
        part: which.
        size: in bytes.
        head: what its owner needs to know to read it.
    """

    part: StatePart
    size: int
    head: bytes


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="commit"):
    """What has come is right; without this it is as if it never had.

    Attributes:
        checksum: of the head and the bytes.
    """

    checksum: int


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ask"):
    """What is there?"""


class Hold(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="hold"):
    """Stay for as long as this connection is there.

    Attributes:
        limit: the bytes that may be kept from now on, where that is more than before: another start may keep more.
    """

    limit: Annotated[int, msgspec.Meta(ge=0)]


class Fetch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="fetch"):
    """Give a part: its bytes follow the answer, or on one host the memory that they are in.

    Attributes:
        part: which.
    """

    part: StatePart


class Drop(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="drop"):
    """A part is not as it was put.

    Attributes:
        part: which.
    """

    part: StatePart


class Write(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="write"):
    """Write a version of a stage to disk; whoever asks the same again hears whether that is done.

    Attributes:
        stage: which.
        rank: whose part of it, where servers have several ranks.
        version: which.
        folder: where it goes, which nobody else writes to.
        prefix: with what the names of its tensors begin here, and not on disk.
        pieces: how many each part was made into.
        keepers: of the run, by name, and how this one reaches them.
        near: the name of this one.
    """

    stage: int
    rank: int
    version: int
    folder: str
    prefix: str
    pieces: int
    keepers: tuple[tuple[str, Address], ...]
    near: str


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="release"):
    """Versions need not be written to disk any more.

    Attributes:
        version: the newest of them.
    """

    version: int


class Dismiss(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="dismiss"):
    """The run needs no keeper any more."""


Request = Offer | Ask | Hold | Fetch | Drop | Write | Release | Dismiss


class KeeperAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Done, or why not.

    Attributes:
        refusal: empty if it is done.
        sizes: what is there, and how many bytes it has, if that was asked.
        port: where other hosts reach the keeper, if that was asked; 0 where none does.
        head: of a part that was fetched.
        checksum: of its head and bytes.
        size: of its bytes.
        written: whether a version is on disk, if that was asked.
        warnings: what somebody should know of the way there.
    """

    refusal: str = ""
    sizes: tuple[tuple[StatePart, int], ...] = ()
    port: int = 0
    head: bytes = b""
    checksum: int = 0
    size: int = 0
    written: bool = False
    warnings: tuple[str, ...] = ()


read_early(Request, KeeperAnswer)


class Channel:
    """One side of a connection.

    Args:
        connection: to the other side; closed with the channel.
        token: the run's.
        nonce: tells this connection from all others.
        name: of this side.
        other: of the other side.
    """

    def __init__(self, connection: socket.socket, token: str, nonce: bytes, name: str, other: str) -> None:
        self._connection = connection
        self._token = token
        self._keys = {each: f"{nonce.hex()}/{each}" for each in (name, other)}
        self._counts = dict.fromkeys((name, other), 0)
        self._name = name
        self._other = other
        # Another process that has it as well goes on with it.
        close_with(self, connection)

    @classmethod
    def open(cls, address: Address, token: str) -> Self:
        """Connect to a keeper.

        Raises:
            KeeperLost: there is none.
        """
        family = socket.AF_UNIX if isinstance(address, str) else family_of(address[0])
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(REACH)
            connection.connect(address)
            connection.settimeout(PATIENCE)
            nonce = _receive(connection, _NONCE)
        except OSError as error:
            connection.close()
            raise KeeperLost(f"no keeper can be reached: {error.strerror or error}") from error
        return cls(connection, token, nonce, "trainer", "keeper")

    @classmethod
    def accept(cls, connection: socket.socket, token: str) -> Self:
        """Greet a trainer.

        Raises:
            OSError: it is gone.
        """
        nonce = secrets.token_bytes(_NONCE)
        connection.settimeout(PATIENCE)
        connection.sendall(nonce)
        if connection.family != socket.AF_UNIX:
            # A host that is gone says nothing, and what it has begun to send takes memory.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _MISSED:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
        return cls(connection, token, nonce, "keeper", "trainer")

    @property
    def is_local(self) -> bool:
        """Whether both sides are on one host, and can hand each other memory."""
        return self._connection.family == socket.AF_UNIX

    def trust(self) -> None:
        """The other side has the token, and may take its time."""
        self._connection.settimeout(None)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing waits in it to be received, its end neither."""
        look = select.poll()
        look.register(self._connection, select.POLLIN)
        return not look.poll(0)

    def close(self) -> None:
        """Let go of it; whatever waits in it fails."""
        with suppress(OSError):  # the other side may be gone
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message.

        Raises:
            KeeperLost: the other side is gone.
        """
        sealed = seal(self._token, self._next_key(self._name), message)
        self.send_bytes([memoryview(_LENGTH.pack(len(sealed)) + sealed)])

    def receive(self, kind: type[_T]) -> _T:
        """Receive a message.

        Args:
            kind: what it must be.

        Raises:
            KeeperLost: the other side is gone, or has not the run's token.
        """
        try:
            (length,) = _LENGTH.unpack(_receive(self._connection, _LENGTH.size))
            if length > _LARGEST:
                raise KeeperLost(f"the other side announces a message of {length} bytes")
            sealed = _receive(self._connection, length)
            return unseal(self._token, self._next_key(self._other), sealed, kind)
        except (OSError, ControlError) as error:
            raise KeeperLost(f"the other side says nothing that can be used: {error}") from error

    def send_bytes(self, pieces: Sequence[memoryview]) -> None:
        """Send some memory as it is, in as few calls as it takes: each wakes the other side.

        Raises:
            KeeperLost: the other side is gone.
        """
        with _other_side():
            left = [*pieces]
            while left:
                sent = self._connection.sendmsg(left[:_AT_ONCE])
                while left and sent >= len(left[0]):
                    sent -= len(left.pop(0))
                if sent:
                    left[0] = left[0][sent:]

    def receive_into(self, pieces: Iterable[memoryview]) -> None:
        """Fill some memory.

        Raises:
            KeeperLost: the other side is gone.
        """
        with _other_side():
            for piece in pieces:
                _fill(self._connection, piece)

    def hand_over(self, segment: Segment) -> None:
        """Let the other side of a channel on one host read and write some memory.

        Raises:
            KeeperLost: the other side is gone.
        """
        with _other_side():
            socket.send_fds(self._connection, [_HANDED], [segment.handle])

    def receive_segment(self, size: int) -> Segment:
        """Get what the other side hands over.

        Args:
            size: of the memory, in bytes.

        Raises:
            KeeperLost: the other side is gone, or hands over nothing.
        """
        with _other_side():
            said, handles, _, _ = socket.recv_fds(self._connection, len(_HANDED), 1)
        if said != _HANDED or not handles:
            raise KeeperLost("the other side hands over nothing")
        return Segment(handles[0], size)

    def _next_key(self, side: str) -> str:
        self._counts[side] += 1
        return f"{self._keys[side]}/{self._counts[side]}"


@contextmanager
def _other_side() -> Iterator[None]:
    """Within the block, a connection that fails is the loss of the other side."""
    try:
        yield
    except OSError as error:
        raise KeeperLost(f"the other side is gone: {error}") from error


def _receive(connection: socket.socket, length: int) -> bytes:
    content = bytearray(length)
    _fill(connection, memoryview(content))
    return bytes(content)


def _fill(connection: socket.socket, memory: memoryview) -> None:
    while memory:
        count = connection.recv_into(memory)
        if not count:
            raise ConnectionResetError("it has ended")
        memory = memory[count:]
