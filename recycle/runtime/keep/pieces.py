"""A part as pieces on several hosts: cut up, with parity, block by block; and the part from enough of them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np

from recycle.runtime.errors import ConnectionLost
from recycle.runtime.keep.erasure import Row, missing_rows, spare_rows
from recycle.runtime.keep.layout import Version, bytes_of, make_version
from recycle.state.checksum import BLOCK, cut
from recycle.state.errors import BadCopy
from recycle.state.ladder import Copy, StatePart
from recycle.state.redundancy import Redundancy, piece_size

ROW = BLOCK // 4
"""Bytes of each piece that are looked at together, so that those of all of them are in a core's cache."""

SMALL = BLOCK // 32
"""Memory of fewer bytes is gathered before it is copied and summed: to handle a piece takes longer than to copy it."""


def range_of_piece(part: StatePart, version: Version) -> range:
    """Which bytes of a version are in a piece that is no parity; where the last ones are cut short, they end in zeros.

    Args:
        part: which part, and piece.
        version: of which it is.
    """
    whole = version.range_of(part)
    size = piece_size(len(whole), part.needed)
    return whole[part.piece * size : (part.piece + 1) * size]


def blocks_of(version: Version, part: StatePart, redundancy: Redundancy) -> Iterator[tuple[int, list[memoryview]]]:
    """All pieces of a part, block by block, each with the number of its piece.

    Args:
        version: of contiguous tensors.
        part: which part of it.
        redundancy: into which pieces.
    """
    whole = version.range_of(part)
    if redundancy.needed == 1:
        for block in cut(bytes_of(version.state, whole)):
            yield 0, gather_small(block)
        return
    size = piece_size(len(whole), redundancy.needed)
    for start in range(0, size, ROW):
        rows = [
            _row(version, whole[number * size : (number + 1) * size], start, min(ROW, size - start))
            for number in range(redundancy.needed)
        ]
        for number, row in enumerate([*rows, *spare_rows(rows, redundancy.spare)]):
            yield number, [row.data]


def gather_small(block: Sequence[memoryview]) -> list[memoryview]:
    """The same bytes in fewer pieces: those that are small, and follow each other, are copied into one."""
    found: list[memoryview] = []
    for small, grouped in groupby(block, lambda piece: len(piece) < SMALL):
        pieces = [*grouped]
        found += [memoryview(bytearray().join(pieces))] if small and len(pieces) > 1 else pieces
    return found


def rebuild(version: Version, part: StatePart, held: Mapping[int, Row | None], pieces: int) -> None:
    """Fill in what is missing of a part.

    Args:
        version: of which it is; what came of the part is in it already.
        part: which part.
        held: as many pieces as are needed, by number: those of parity with their bytes.
        pieces: how many there were.
    """
    whole = version.range_of(part)
    size = piece_size(len(whole), part.needed)
    own = [whole[number * size : (number + 1) * size] for number in range(part.needed)]
    if all(number in held for number in range(part.needed)):
        return
    for start in range(0, size, ROW):
        length = min(ROW, size - start)
        rows = {
            number: _row(version, own[number], start, length) if parity is None else parity[start : start + length]
            for number, parity in held.items()
        }
        for number, row in missing_rows(rows, part.needed, pieces).items():
            taken = 0
            for target in bytes_of(version.state, own[number][start : start + length]):
                target[:] = row.data[taken : taken + len(target)]
                taken += len(target)


def _row(version: Version, piece: range, start: int, length: int) -> Row:
    """Some bytes of a piece in a row, with zeros where it is cut short."""
    row = np.zeros(length, np.uint8)
    taken = 0
    for source in bytes_of(version.state, piece[start : start + length]):
        row.data[taken : taken + len(source)] = source
        taken += len(source)
    return row


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
