"""A trainer's side of a keeper."""

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

from recycle.state.channel import (
    Address,
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
    Write,
)
from recycle.state.checksum import Checksum, cut_chunks, digest_of
from recycle.state.errors import BadCopy, KeeperLost, Refused
from recycle.state.ladder import Copy, StatePart
from recycle.state.segment import Segment, Windows
from recycle.threads import map_apart

WINDOWS = 16
"""So many segments a trainer has mapped at most. They are its keeper's, which has fewer of each size that comes."""

READERS = 4
"""So many threads copy a part from this host's memory at most: one core takes longer than the memory does."""


class KeeperClient:
    """One keeper, as a trainer reaches it; for any number of threads.

    The connection over which a part was put is there for the next one, and so is memory that was handed over for it.

    Args:
        address: of the keeper.
        token: the run's.
        name: the keeper's, for people.

    Attributes:
        name: as above.
        address: as above.
    """

    def __init__(self, address: Address, token: str, name: str) -> None:
        self.name, self.address = name, address
        self._token = token
        self._lock = threading.Lock()
        self._idle: Channel | None = None
        self._windows = Windows(WINDOWS)

    def copies(self) -> tuple[Copy, ...]:
        """What it has.

        Raises:
            KeeperLost: it cannot be reached.
        """
        return tuple(Copy(part, self.name, size) for part, size in self._ask(Ask()).sizes)

    def offer(self, part: StatePart, head: bytes, size: int) -> "Delivery":
        """Begin to put a part.

        Args:
            part: which.
            head: what its owner needs to know to read it.
            size: how many bytes follow.

        Raises:
            Refused: there is no room, or nobody must keep this part.
            KeeperLost: it cannot be reached.
        """
        channel = self._take_idle() or Channel.open(self.address, self._token)
        try:
            channel.send(Offer(part, size, head))
            _require_done(channel.receive(KeeperAnswer))
            segment = channel.receive_segment(size) if channel.is_local else None
            if segment is not None:
                segment.window = self._windows.find(segment.handle, size)
            return Delivery(channel, segment, self._keep_idle)
        except KeeperLost:
            channel.close()
            # They may be all that is left of it.
            self._windows.close()
            raise

    def fetch(self, part: StatePart, make_room: Callable[[bytes], Iterable[memoryview]]) -> None:
        """Get a part.

        Args:
            part: which.
            make_room: gives the memory that the bytes go to, from the head that was put with them.

        Raises:
            BadCopy: it is not as it was put.
            KeeperLost: the keeper cannot be reached, or has not got it any more.
        """
        channel = Channel.open(self.address, self._token)
        try:
            channel.send(Fetch(part))
            answer = channel.receive(KeeperAnswer)
            _require_done(answer)
            segment = channel.receive_segment(answer.size) if channel.is_local else None
            chunks = [*cut_chunks(make_room(answer.head))]
            if answer.size != sum(map(_size, chunks)):
                raise BadCopy(f"{part} at {self.name} is cut off after {answer.size} bytes")
            checksum = Checksum(answer.head)
            if segment is None:
                for chunk in chunks:
                    checksum.add_digest(digest_of(_received(channel, chunk)))
            else:
                for digest in _read(segment, chunks):
                    checksum.add_digest(digest)
        finally:
            channel.close()
        if checksum.value != answer.checksum:
            raise BadCopy(f"{part} at {self.name} is not as it was put")

    def drop(self, part: StatePart) -> None:
        """Say that a part is bad.

        Raises:
            KeeperLost: it cannot be reached.
        """
        self._ask(Drop(part))

    def write(self, request: Write) -> Sequence[str] | None:
        """Have a version written to disk, or ask whether it was.

        Args:
            request: which, and to where.

        Returns:
            None as long as it is not done, and then what somebody should know of it.

        Raises:
            Refused: it cannot be written.
            KeeperLost: it cannot be reached.
        """
        answer = self._ask(request)
        return answer.warnings if answer.written else None

    def release(self, version: int) -> None:
        """Say that versions up to this one need not be written to disk any more.

        Raises:
            KeeperLost: it cannot be reached.
        """
        self._ask(Release(version))

    def find_port(self) -> int:
        """Where other hosts reach it; 0 where none does.

        Raises:
            KeeperLost: it cannot be reached.
        """
        return self._ask(Ask()).port

    def dismiss(self) -> None:
        """Say that the run needs it no more.

        Raises:
            KeeperLost: it cannot be reached.
        """
        self._ask(Dismiss())

    def hold(self, limit: int) -> Channel:
        """Keep it from ending, for as long as the connection is there.

        Args:
            limit: the bytes that it may keep at least.

        Raises:
            KeeperLost: it cannot be reached.
        """
        channel = Channel.open(self.address, self._token)
        try:
            channel.send(Hold(limit))
            _require_done(channel.receive(KeeperAnswer))
        except KeeperLost:
            channel.close()
            raise
        return channel

    def close(self) -> None:
        """Let go of the connection that is there for the next part, and of memory."""
        self._windows.close()
        channel = self._take_idle()
        if channel is not None:
            channel.close()

    def _take_idle(self) -> Channel | None:
        with self._lock:
            channel, self._idle = self._idle, None
        if channel is None or channel.is_quiet:
            return channel
        # The keeper that it leads to is gone; another one may have taken its place.
        channel.close()
        return None

    def _keep_idle(self, channel: Channel) -> None:
        with self._lock:
            if self._idle is None:
                self._idle = channel
                return
        channel.close()

    def _ask(self, request: Ask | Drop | Write | Release | Dismiss) -> KeeperAnswer:
        channel = Channel.open(self.address, self._token)
        try:
            channel.send(request)
            answer = channel.receive(KeeperAnswer)
            _require_done(answer)
            return answer
        finally:
            channel.close()


class Delivery:
    """A part on its way to a keeper, which has it when that is committed.

    Args:
        channel: to the keeper, which waits for the bytes.
        segment: the memory that they go to, where the keeper has handed that over; None where they are sent.
        done: gets the channel once the part is there.
    """

    def __init__(self, channel: Channel, segment: Segment | None, done: Callable[[Channel], None]) -> None:
        self._channel = channel
        self._segment = segment
        self._done = done
        self._written = 0
        self._lost: KeeperLost | None = None
        self._arrived = False

    @property
    def is_lost(self) -> bool:
        """Whether it never arrives."""
        return self._lost is not None

    def write(self, block: Sequence[memoryview]) -> None:
        """Send some bytes. Where the keeper is gone, or the delivery was given up, to confirm it fails."""
        try:
            if self._lost is None and self._segment is None:
                self._channel.send_bytes(block)
            elif self._lost is None and self._segment is not None:
                for piece in block:
                    self._segment.write(self._written, piece)
                    self._written += len(piece)
        except KeeperLost as error:
            self._lost = error

    def commit(self, checksum: int) -> None:
        """Say that what was sent is right; whether the keeper has it, it says to ``confirm``.

        Args:
            checksum: of the head and the bytes.
        """
        try:
            if self._lost is None:
                self._channel.send(Commit(checksum))
        except KeeperLost as error:
            self._lost = error

    def confirm(self) -> None:
        """Wait until the keeper has what was committed.

        Raises:
            Refused: nobody must keep this part any more.
            KeeperLost: the keeper is gone.
        """
        try:
            if self._lost is not None:
                raise self._lost
            _require_done(self._channel.receive(KeeperAnswer))
        except KeeperLost:
            self.give_up()
            raise
        self._arrived = True
        if self._segment is not None:
            self._segment.close()
        self._done(self._channel)

    def give_up(self) -> None:
        """Have the keeper forget what has come, if that was not committed; from any thread."""
        if self._arrived:
            return
        # In this order: nothing is written any more when the keeper hears of it.
        if self._segment is not None:
            self._segment.close()
        self._channel.close()


def send(
    deliveries: Mapping[int, Sequence[Delivery]], head: bytes, blocks: Iterable[tuple[int, Sequence[memoryview]]]
) -> Mapping[int, int]:
    """Send the pieces of a part to some keepers, block by block, each of which is read once.

    Args:
        deliveries: of each piece, by number.
        head: of the part.
        blocks: the bytes of the pieces, in order, each with the number of its piece.

    Returns:
        What to commit each piece with.
    """
    checksums = {number: Checksum(head) for number in deliveries}
    for number, block in blocks:
        if all(each.is_lost for every in deliveries.values() for each in every):
            break
        if number in deliveries:
            for piece in block:
                checksums[number].add(piece)
            for each in deliveries[number]:
                each.write(block)
    return {number: each.value for number, each in checksums.items()}


def _received(channel: Channel, chunk: Sequence[memoryview]) -> Iterable[memoryview]:
    """Blocks of a chunk as they come."""
    for block in chunk:
        channel.receive_into([block])
        yield block


def _read(segment: Segment, chunks: Sequence[Sequence[memoryview]]) -> Sequence[bytes]:
    """Fill memory with what is in a segment, by several threads; gives the digest of each chunk, in order."""

    def read(start: int, chunk: Sequence[memoryview]) -> bytes:
        return digest_of(_filled(segment, start, chunk))

    starts = [*accumulate(map(_size, chunks), initial=0)]
    return map_apart(read, min(READERS, len(os.sched_getaffinity(0))), "reads a part", starts, chunks)


def _filled(segment: Segment, start: int, chunk: Sequence[memoryview]) -> Iterable[memoryview]:
    """Blocks of a chunk as they are read."""
    for block in chunk:
        segment.read(start, block)
        yield block
        start += len(block)


def _size(chunk: Sequence[memoryview]) -> int:
    return sum(map(len, chunk))


def _require_done(answer: KeeperAnswer) -> None:
    if answer.refusal:
        raise Refused(answer.refusal)
