"""What trainers and keepers tell each other: small sealed messages, and a part between them.

On one host that is the memory in which it is kept, handed over; between hosts its bytes.
"""

import select
import socket
from collections.abc import Iterable
from typing import Annotated, Self

import msgspec

from recycle.control.host.channel import SealedChannel
from recycle.control.membership.doors import Guest, HostDoor, knock
from recycle.control.membership.messages import read_early
from recycle.state.errors import KeeperLost
from recycle.state.ladder import StatePart
from recycle.state.segment import Segment

PATIENCE = 5.0
"""Seconds without a byte after which a trainer gives a keeper up; a keeper has the time of its trainers."""

REACH = 2.0
"""Seconds after which a host is given up that takes no connection: its kernel does that, however busy it is."""

PURPOSE = "keeper"

HERE = "here"
"""The address of the keeper that is on one's own host."""

Address = str | tuple[str, int]
"""Of a keeper: HERE, or where other hosts reach it."""

_MISSED = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3))

_HANDED = b"m"


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


class Channel(SealedChannel):
    """One side of a connection between a trainer and a keeper."""

    lost = KeeperLost

    @classmethod
    def open(cls, address: Address, token: str) -> Self:
        """Connect to a keeper.

        Raises:
            KeeperLost: there is none.
        """
        place = HostDoor(token, PURPOSE) if address == HERE else address
        assert not isinstance(place, str), "another host is told by its address"
        try:
            guest = knock(place, token, PURPOSE, REACH, PATIENCE)
        except OSError as error:
            raise KeeperLost(f"no keeper can be reached: {error.strerror or error}") from error
        channel = cls(guest, token, "trainer", "keeper")
        channel.be_patient(PATIENCE)
        return channel

    @classmethod
    def accept(cls, guest: Guest, token: str) -> Self:
        """Greet a trainer, which has the time that it takes.

        Raises:
            OSError: it is gone.
        """
        if guest.connection.family != socket.AF_UNIX:
            # A host that is gone says nothing, and what it has begun to send takes memory.
            guest.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _MISSED:
                guest.connection.setsockopt(socket.IPPROTO_TCP, option, value)
        return cls(guest, token, "keeper", "trainer")

    @property
    def is_local(self) -> bool:
        """Whether both sides are on one host, and can hand each other memory."""
        return self._connection.family == socket.AF_UNIX

    @property
    def is_quiet(self) -> bool:
        """Whether nothing waits in it to be received, its end neither."""
        look = select.poll()
        look.register(self._connection, select.POLLIN)
        return not look.poll(0)

    def receive_into(self, pieces: Iterable[memoryview]) -> None:
        """Fill some memory.

        Raises:
            KeeperLost: the other side is gone.
        """
        with self._other_side():
            for piece in pieces:
                left = piece
                while left:
                    count = self._connection.recv_into(left)
                    if not count:
                        raise ConnectionResetError("it has ended")
                    left = left[count:]

    def hand_over(self, segment: Segment) -> None:
        """Let the other side of a channel on one host read and write some memory.

        Raises:
            KeeperLost: the other side is gone.
        """
        with self._other_side():
            socket.send_fds(self._connection, [_HANDED], [segment.handle])

    def receive_segment(self, size: int) -> Segment:
        """Get what the other side hands over.

        Args:
            size: of the memory, in bytes.

        Raises:
            KeeperLost: the other side is gone, or hands over nothing.
        """
        with self._other_side():
            said, handles, _, _ = socket.recv_fds(self._connection, len(_HANDED), 1)
        if said != _HANDED or not handles:
            raise KeeperLost("the other side hands over nothing")
        return Segment(handles[0], size)
