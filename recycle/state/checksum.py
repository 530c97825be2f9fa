"""The checksum of a part, as fast as memory is read."""

from collections.abc import Iterable

import xxhash


class Checksum:
    """Of a head and the bytes that follow it, piece by piece (XXH3 of 64 bits).

    Args:
        head: what comes first.
    """

    def __init__(self, head: bytes) -> None:
        self._state = xxhash.xxh3_64(head)

    def add(self, piece: memoryview) -> None:
        """What comes next."""
        self._state.update(piece)

    @property
    def value(self) -> int:
        """Of all that has come."""
        return self._state.intdigest()


def checksum_of(head: bytes, pieces: Iterable[memoryview]) -> int:
    """Of a head and some memory."""
    found = Checksum(head)
    for each in pieces:
        found.add(each)
    return found.value
