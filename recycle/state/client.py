"""A trainer's side of a keeper."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from recycle.state.channel import Address, Answer, Ask, Channel, Commit, Dismiss, Drop, Fetch, Offer
from recycle.state.checksum import Checksum
from recycle.state.errors import BadCopy, KeeperLost, Refused
from recycle.state.ladder import Copy, StatePart
from recycle.state.segment import Segment

BLOCK = 1 << 19
"""So many bytes are copied and summed at once, while they are in a core's cache; a delivery can be given up between two
of them."""


class KeeperClient:
    """One keeper, as a trainer reaches it.

    Args:
        address: of the keeper.
        token: the run's.
        name: the keeper's, for people.
    """

    def __init__(self, address: Address, token: str, name: str) -> None:
        self.name = name
        self._address = address
        self._token = token

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
        channel = Channel.open(self._address, self._token)
        try:
            channel.send(Offer(part, size, head))
            _require_done(channel.receive(Answer))
            return Delivery(channel, channel.receive_segment(size) if channel.is_local else None)
        except KeeperLost:
            channel.close()
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
        channel = Channel.open(self._address, self._token)
        try:
            channel.send(Fetch(part))
            answer = channel.receive(Answer)
            _require_done(answer)
            segment = channel.receive_segment(answer.size) if channel.is_local else None
            blocks = [*cut(make_room(answer.head))]
            if answer.size != sum(map(len, blocks)):
                raise BadCopy(f"{part} at {self.name} is cut off after {answer.size} bytes")
            checksum, start = Checksum(answer.head), 0
            for block in blocks:
                if segment is None:
                    channel.receive_into([block])
                else:
                    segment.read(start, block)
                checksum.add(block)
                start += len(block)
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

    def hold(self) -> Channel:
        """Keep it from ending, for as long as the connection is there.

        Raises:
            KeeperLost: it cannot be reached.
        """
        channel = Channel.open(self._address, self._token)
        try:
            channel.send(Ask())
            _require_done(channel.receive(Answer))
        except KeeperLost:
            channel.close()
            raise
        return channel

    def _ask(self, request: Ask | Drop | Dismiss) -> Answer:
        channel = Channel.open(self._address, self._token)
        try:
            channel.send(request)
            answer = channel.receive(Answer)
            _require_done(answer)
            return answer
        finally:
            channel.close()


class Delivery:
    """A part on its way to a keeper, which has it when that is committed.

    Args:
        channel: to the keeper, which waits for the bytes.
        segment: the memory that they go to, where the keeper has handed that over.
    """

    def __init__(self, channel: Channel, segment: Segment | None = None) -> None:
        self._channel = channel
        self._segment = segment
        self._written = 0
        self._lost: KeeperLost | None = None

    @property
    def is_lost(self) -> bool:
        """Whether it never arrives."""
        return self._lost is not None

    def write(self, piece: memoryview) -> None:
        """Send some bytes. Where the keeper is gone, or the delivery was given up, to commit it fails."""
        try:
            if self._lost is None and self._segment is None:
                self._channel.send_bytes([piece])
            elif self._lost is None and self._segment is not None:
                self._segment.write(self._written, piece)
                self._written += len(piece)
        except KeeperLost as error:
            self._lost = error

    def commit(self, checksum: int) -> None:
        """Say that what was sent is right.

        Args:
            checksum: of the head and the bytes.

        Raises:
            Refused: nobody must keep this part any more.
            KeeperLost: the keeper is gone.
        """
        try:
            if self._lost is not None:
                raise self._lost
            self._channel.send(Commit(checksum))
            _require_done(self._channel.receive(Answer))
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Have the keeper forget what has come, if that was not committed; from any thread."""
        self._channel.close()
        if self._segment is not None:
            self._segment.close()


def send(
    deliveries: Mapping[int, Sequence[Delivery]], head: bytes, blocks: Iterable[tuple[int, memoryview]]
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
            checksums[number].add(block)
            for each in deliveries[number]:
                each.write(block)
    return {number: each.value for number, each in checksums.items()}


def cut(pieces: Iterable[memoryview]) -> Iterator[memoryview]:
    """Memory in blocks, of the size in which it is copied and summed."""
    for piece in pieces:
        for start in range(0, len(piece), BLOCK):
            yield piece[start : start + BLOCK]


def _require_done(answer: Answer) -> None:
    if answer.refusal:
        raise Refused(answer.refusal)
