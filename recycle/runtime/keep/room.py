"""Room for a version that comes part by part and piece by piece, every one of which may turn out to be bad."""

from collections.abc import Iterator

import numpy as np

from recycle.runtime.errors import ConnectionLost
from recycle.runtime.keep.erasure import Row
from recycle.runtime.keep.layout import Version, bytes_of, make_version
from recycle.runtime.keep.pieces import range_of_piece, rebuild
from recycle.state.errors import BadCopy
from recycle.state.ladder import Copy, StatePart
from recycle.state.redundancy import piece_size


class Room:
    """Memory for one version, laid out as the first piece that is known to be good says.

    Args:
        step: which version.
        pieces: how many each part was made into.
    """

    def __init__(self, step: int, pieces: int) -> None:
        self._version = Version({}, ())
        self._step = step
        self._pieces = pieces
        self._head = b""
        self._confirmed = False
        # What has come of each part, by the number of the piece: of parity its bytes, of the part itself nothing.
        self._held: dict[StatePart, dict[int, Row | None]] = {}
        self._coming: Row | None = None

    @property
    def version(self) -> Version:
        """What is in it."""
        return self._version

    def memory(self, copy: Copy, head: bytes) -> Iterator[memoryview]:
        """Where a part goes, or a piece of it.

        Args:
            copy: of that.
            head: which came with it.

        Raises:
            BadCopy: the two cannot belong to this version.
        """
        if not self._confirmed:
            self._lay_out(copy, head)
        part = copy.part
        size = piece_size(len(self._version.range_of(part)), part.needed)
        if head != self._head or size != copy.size or part.piece >= self._pieces:
            raise BadCopy(f"{part} at {copy.keeper} is laid out in another way")
        if part.piece >= part.needed:
            self._coming = np.empty(size, np.uint8)
            return iter([self._coming.data])
        self._coming = None
        wanted = range_of_piece(part, self._version)
        return _with_rest(bytes_of(self._version.state, wanted), size - len(wanted))

    def confirm(self, part: StatePart) -> None:
        """What came last is as it was put, and with it how the version is laid out.

        Args:
            part: what it was.
        """
        self._confirmed = True
        self._held.setdefault(part.whole, {})[part.piece] = self._coming

    def has(self, part: StatePart) -> bool:
        """Whether a piece has come."""
        return part.piece in self._held.get(part.whole, {})

    def finish(self, part: StatePart) -> bool:
        """Put a part together, if enough of it has come.

        Args:
            part: which.
        """
        held = self._held.get(part.whole, {})
        if len(held) < part.needed:
            return False
        rebuild(self._version, part, held, self._pieces)
        del self._held[part.whole]
        return True

    def _lay_out(self, copy: Copy, head: bytes) -> None:
        try:
            step, self._version = make_version(head, copy.part.parts)
        except ConnectionLost as error:
            raise BadCopy(f"{copy.part} at {copy.keeper}: {error}") from error
        if step != self._step:
            raise BadCopy(f"{copy.part} at {copy.keeper} says that it is of version {step}")
        self._head = head


def _with_rest(pieces: Iterator[memoryview], rest: int) -> Iterator[memoryview]:
    """Some memory, and behind it memory that nobody needs."""
    yield from pieces
    if rest:
        yield memoryview(bytearray(rest))
