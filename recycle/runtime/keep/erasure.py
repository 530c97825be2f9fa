"""The arithmetic of parity: XOR for one lost piece, and a library's erasure code for more."""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
from pyeclib.ec_iface import ECDriver

CODE = "isa_l_rs_cauchy"
"""The library's name of the code: a systematic Reed-Solomon code by a Cauchy matrix."""

HEADER = 80
"""Bytes that the library puts before each piece: its number and size, and nothing of what is in it."""

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
    coded = _code(len(rows), spare).encode(b"".join(each.data for each in rows))
    return [np.frombuffer(each, np.uint8, offset=HEADER) for each in coded[len(rows) :]]


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
    code = _code(needed, pieces - needed)
    length = len(next(iter(rows.values())))
    # The library wants its headers, which are the same for any content.
    headers = code.encode(bytes(needed * length))
    whole = np.frombuffer(
        code.decode([headers[number][:HEADER] + row.tobytes() for number, row in rows.items()]), np.uint8
    )
    return {number: whole[number * length : (number + 1) * length] for number in missing}


@cache
def _code(needed: int, spare: int) -> ECDriver:
    return ECDriver(k=needed, m=spare, ec_type=CODE)
