"""The arithmetic of parity: XOR for one lost piece, and a library's erasure code for more."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import zfec

Row = npt.NDArray[np.uint8]
"""As many bytes of a piece as are looked at together."""


def spare_rows(rows: Sequence[Row], spare: int) -> Sequence[Row]:
    """The rows of the pieces that are parity.

    Args:
        rows: of the pieces that are the part itself, equally long.
        spare: how many pieces are parity.
    """
    if spare == 1:
        return [np.bitwise_xor.reduce(rows, axis=0)]
    numbers = tuple(range(len(rows), len(rows) + spare))
    coded = zfec.Encoder(len(rows), len(rows) + spare).encode([each.data for each in rows], numbers)
    return [np.frombuffer(each, np.uint8) for each in coded]


def missing_rows(rows: Mapping[int, Row], needed: int, pieces: int) -> Mapping[int, Row]:
    """The rows of those pieces of a part itself that are not there.

    Args:
        rows: of as many pieces as are needed, by number, equally long.
        needed: how many that is.
        pieces: how many there were.
    """
    missing = [number for number in range(needed) if number not in rows]
    assert len(rows) == needed, "of fewer nothing is known, and more are not looked at"
    if needed + 1 == pieces:
        return {number: np.bitwise_xor.reduce([*rows.values()], axis=0) for number in missing}
    # The library wants the pieces of the part itself in their own places.
    spare = iter(sorted(number for number in rows if number >= needed))
    order = [number if number in rows else next(spare) for number in range(needed)]
    whole = zfec.Decoder(needed, pieces).decode([rows[number].data for number in order], order)
    return {number: np.frombuffer(whole[number], np.uint8) for number in missing}
