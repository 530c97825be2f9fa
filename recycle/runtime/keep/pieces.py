"""A part as pieces on several hosts: cut up, with parity, block by block; and the part from enough of them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np

from recycle.runtime.keep.erasure import Row, missing_rows, spare_rows
from recycle.runtime.keep.layout import Version, bytes_of
from recycle.state.checksum import BLOCK, cut
from recycle.state.ladder import StatePart
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
