"""The keeper: a process of each host that holds parts of versions, and is no trainer's child, so that it outlives them.

Its memory is handed to the trainers of its host, and nobody else reaches it. Nothing is left of it when the keeper and
they have ended, in whatever way, and no file or segment has a name that somebody would have to clean up.
"""

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import NamedTuple, Protocol, assert_never

from recycle.control.membership.addresses import listen_at
from recycle.control.membership.doors import Door, Guest, HostDoor
from recycle.state.channel import (
    PURPOSE,
    Ask,
    Channel,
    Commit,
    Dismiss,
    Drop,
    Fetch,
    Hold,
    KeeperAnswer,
    Offer,
    Release,
    Request,
    Write,
)
from recycle.state.errors import KeeperLost, Refused
from recycle.state.ladder import StatePart, find_outdated, is_late
from recycle.state.segment import Segment
from recycle.threads import NoneLeft, start_thread

BUFFER = 1 << 20
"""Bytes that go through a connection to another host at once."""

LINGER = 600.0
"""Seconds for which a keeper waits for a run's next start after everybody who was there is gone."""

LOOK = 0.2
"""Seconds between two looks at whether somebody is expected."""


class VersionWriter(Protocol):
    """Writes versions to disk, one after the other; for any number of threads."""

    def write(self, request: Write) -> Sequence[str] | None:
        """Begin to write a version, or see whether that is done.

        Args:
            request: which, and to where.

        Returns:
            None as long as it is not, and then what somebody should know of it.

        Raises:
            Refused: it cannot be written.
        """


def listen(token: str) -> socket.socket:
    """A socket for a run's keeper, at which every process of the run on this host finds it.

    Raises:
        OSError: the run has a keeper here.
    """
    listener = HostDoor(token, PURPOSE).claim()
    if listener is None:
        raise OSError(errno.EADDRINUSE, "the run has a keeper on this host")
    return listener


def listen_to_hosts(address: str) -> socket.socket:
    """A socket at which other hosts reach this one's keeper.

    Args:
        address: of this host.

    Raises:
        OSError: it is not.
    """
    return listen_at(address, 0)


def serve(
    listeners: Sequence[socket.socket],
    token: str,
    limit: int,
    linger: float = LINGER,
    writer: VersionWriter | None = None,
    promised: Callable[[int], None] = lambda _: None,
) -> None:
    """Keep what is put, until it is said that nobody needs it, or nobody is there any more.

    Args:
        listeners: where trainers connect: those of this host, and those of others if there are any.
        token: the run's; who has not got it is not heard.
        limit: the most bytes that may be kept.
        linger: seconds without anybody after which nobody is expected.
        writer: writes versions to disk; None where nobody asks for it.
        promised: told how many bytes a start of the run may keep at least.
    """
    port = next((each.getsockname()[1] for each in listeners if each.family != socket.AF_UNIX), 0)
    keeper = Keeper(token, limit, port, writer, promised)
    with closing(Door(listeners, token, PURPOSE)) as door:
        while not keeper.is_over(linger):
            for guest in door.admit(LOOK):
                try:
                    start_thread(partial(keeper.attend, guest), "a trainer", 0)
                except NoneLeft:
                    guest.connection.close()


class Keeper:
    """What a keeper does; for any number of threads.

    Args:
        token: the run's.
        limit: the most bytes that may be kept.
        port: where other hosts reach it; 0 where none does.
        writer: writes versions to disk; None where nobody asks for it.
        promised: told how many bytes a start of the run may keep at least.
    """

    def __init__(
        self,
        token: str,
        limit: int,
        port: int,
        writer: VersionWriter | None = None,
        promised: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._token = token
        self._promised = promised
        self._writer = writer
        self._port = port
        self._shelf = Shelf(limit)
        self._lock = threading.Lock()
        self._present = 0
        self._last = time.monotonic()
        self._dismissed = False

    def is_over(self, linger: float) -> bool:
        """Whether nobody is expected.

        Args:
            linger: seconds for which everybody may be away.
        """
        with self._lock:
            return self._dismissed or (not self._present and time.monotonic() > self._last + linger)

    def attend(self, guest: Guest) -> None:
        """Answer a trainer until it is gone."""
        with guest.connection, suppress(KeeperLost, OSError), self._presence():
            channel = Channel.accept(guest, self._token)
            request: Request = channel.receive(Request)  # type: ignore[arg-type]
            while not self._is_dismissed:
                try:
                    self._fulfil(request, channel)
                except Refused as refused:
                    channel.send(KeeperAnswer(str(refused)))
                request = channel.receive(Request)  # type: ignore[arg-type]

    @property
    def _is_dismissed(self) -> bool:
        with self._lock:
            return self._dismissed

    @contextmanager
    def _presence(self) -> Iterator[None]:
        """Within the block, somebody of the run is there."""
        with self._lock:
            self._present += 1
        try:
            yield
        finally:
            with self._lock:
                self._present -= 1
                self._last = time.monotonic()

    def _fulfil(self, request: Request, channel: Channel) -> None:
        match request:
            case Offer():
                self._take(request, channel)
            case Ask():
                channel.send(KeeperAnswer(sizes=tuple(self._shelf.sizes.items()), port=self._port))
            case Hold(limit):
                self._shelf.allow(limit)
                self._promised(limit)
                channel.send(KeeperAnswer())
            case Fetch(part):
                content = self._shelf.find(part)
                if content is None:
                    raise Refused(f"{part} is not there any more")
                channel.send(KeeperAnswer(head=content.head, checksum=content.checksum, size=content.segment.size))
                _give(content.segment, channel)
            case Drop(part):
                self._shelf.drop(part)
                channel.send(KeeperAnswer())
            case Write():
                if self._writer is None:
                    raise Refused("this keeper writes nothing to disk")
                warnings = self._writer.write(request)
                channel.send(KeeperAnswer(written=warnings is not None, warnings=tuple(warnings or ())))
            case Release(version):
                self._shelf.release(version)
                channel.send(KeeperAnswer())
            case Dismiss():
                # Whoever has heard the answer finds nobody here, and nothing ends before it is said.
                with self._lock:
                    channel.send(KeeperAnswer())
                    self._dismissed = True
            case _:
                assert_never(request)

    def _take(self, offer: Offer, channel: Channel) -> None:
        """A part comes, unless its trainer is gone before it has said that it is right."""
        segment = self._shelf.make_room(offer.part, offer.size)
        try:
            channel.send(KeeperAnswer())
            _take_into(segment, channel)
            checksum = channel.receive(Commit).checksum
        except BaseException:
            self._shelf.forget(segment)
            raise
        self._shelf.place(offer.part, Content(offer.head, segment, checksum))
        channel.send(KeeperAnswer())


def _take_into(segment: Segment, channel: Channel) -> None:
    """Have a trainer fill some memory, or fill it with what comes from another host."""
    if channel.is_local:
        channel.hand_over(segment)
        return
    segment.look_through()
    if segment.window is not None:
        channel.receive_into([segment.window.part(0, segment.size)])
        return
    buffer = memoryview(bytearray(BUFFER))
    for start in range(0, segment.size, BUFFER):
        block = buffer[: segment.size - start]
        channel.receive_into([block])
        segment.write(start, block)


def _give(segment: Segment, channel: Channel) -> None:
    """Let a trainer read some memory, or send it to another host."""
    if channel.is_local:
        channel.hand_over(segment)
        return
    buffer = memoryview(bytearray(BUFFER))
    for start in range(0, segment.size, BUFFER):
        block = buffer[: segment.size - start]
        segment.read(start, block)
        channel.send_bytes([block])


class Content(NamedTuple):
    """What was put under a part's name.

    Attributes:
        head: what its owner needs to know to read it.
        segment: the memory that it is in.
        checksum: of head and memory, as whoever put it has computed it.
    """

    head: bytes
    segment: Segment
    checksum: int


class Shelf:
    """What a keeper holds; for any number of threads.

    Args:
        limit: the most bytes that it may hold.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._held: dict[StatePart, Content] = {}
        self._coming: dict[int, int] = {}
        self._spare: list[Segment] = []
        self._written = 0

    def allow(self, limit: int) -> None:
        """It may hold so many bytes, where that is more than before."""
        with self._lock:
            self._limit = max(self._limit, limit)

    def make_room(self, part: StatePart, size: int) -> Segment:
        """Memory for a part that comes; what nobody can need any more makes room for it.

        Args:
            part: which.
            size: in bytes.

        Raises:
            Refused: it is of a view that is over, would be more than this keeper may hold, or the system has no room.
        """
        with self._lock:
            if is_late(self._held, part):
                raise Refused(f"{part} is of a view that is over")
            self._spare += [self._held.pop(each).segment for each in find_outdated(self._held, part, self._written)]
            taken = sum(each.segment.size for each in self._held.values()) + sum(self._coming.values())
            if taken + size > self._limit:
                raise Refused(f"{part} takes {size} bytes, and of {self._limit} that may be kept {taken} are taken")
            # Memory that was in use already is much quicker to fill; by who had it before, if others have as much.
            found = next((each for each in reversed(self._spare) if each.size == size), None)
            self._spare = [each for each in self._spare if each is not found]
            while self._spare and taken + size + sum(each.size for each in self._spare) > self._limit:
                self._spare.pop(0).give_back()
            try:
                segment = Segment.make(size) if found is None else found
            except OSError as error:
                raise Refused(f"{part} takes {size} bytes, which the system does not give: {error.strerror}") from error
            self._coming[id(segment)] = size
            return segment

    def place(self, part: StatePart, content: Content) -> None:
        """A part has come as a whole.

        Raises:
            Refused: it is of a view that is over by now, and forgotten.
        """
        with self._lock:
            # At once, so that it is never counted twice.
            del self._coming[id(content.segment)]
            late = is_late(self._held, part)
            gone = content if late else self._held.get(part)
            if not late:
                self._held[part] = content
        if gone is not None:
            gone.segment.give_back()
        if late:
            raise Refused(f"{part} is of a view that is over")

    def forget(self, segment: Segment) -> None:
        """A part will not come. Its trainer may have it mapped, so that its memory is used for no other."""
        with self._lock:
            del self._coming[id(segment)]
        segment.give_back()

    def release(self, version: int) -> None:
        """Versions up to this one need not be written to disk any more."""
        with self._lock:
            self._written = max(self._written, version)

    def drop(self, part: StatePart) -> None:
        """A part is not as it was put."""
        with self._lock:
            content = self._held.pop(part, None)
            if content is not None:
                content.segment.give_back()

    def find(self, part: StatePart) -> Content | None:
        """A part, if it is there."""
        with self._lock:
            return self._held.get(part)

    @property
    def sizes(self) -> Mapping[StatePart, int]:
        """What is there as a whole, and how many bytes it has."""
        with self._lock:
            return {part: each.segment.size for part, each in self._held.items()}
