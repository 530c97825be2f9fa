"""The checksum of a part, as fast as memory is read, and by several threads at once where it is there as a whole."""

from collections.abc import Iterable, Iterator

import xxhash

BLOCK = 1 << 19
"""So many bytes are copied and summed at once, while they are in a core's cache; a delivery can be given up between two
of them."""

CHUNK = 8 * BLOCK
"""So many bytes have a digest of their own."""


class Checksum:
    """Of a head and the bytes that follow it, piece by piece (XXH3 of 64 bits, of the head and each chunk's digest).

    Args:
        head: what comes first.
    """

    def __init__(self, head: bytes) -> None:
        self._state = xxhash.xxh3_64(head)
        self._chunk = xxhash.xxh3_64()
        self._left = CHUNK

    def add(self, piece: memoryview) -> None:
        """What comes next."""
        while len(piece) >= self._left:
            self._chunk.update(piece[: self._left])
            piece = piece[self._left :]
            self.add_digest(self._chunk.digest())
            self._chunk.reset()
            self._left = CHUNK
        self._chunk.update(piece)
        self._left -= len(piece)

    def add_digest(self, digest: bytes) -> None:
        """The digest of the next chunk, where that was computed elsewhere."""
        self._state.update(digest)

    @property
    def value(self) -> int:
        """Of all that has come."""
        whole = self._state.copy()
        if self._left < CHUNK:
            whole.update(self._chunk.digest())
        return whole.intdigest()


def digest_of(chunk: Iterable[memoryview]) -> bytes:
    """Of one chunk, whose memory is asked for block by block."""
    state = xxhash.xxh3_64()
    for block in chunk:
        state.update(block)
    return state.digest()


def cut(pieces: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Memory in blocks of the size in which it is copied and summed, each of as many pieces as that takes."""
    return _cut(pieces, BLOCK)


def cut_chunks(pieces: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Memory in chunks that have a digest of their own, each in pieces of a block at most."""
    return _cut((piece for block in cut(pieces) for piece in block), CHUNK)


def _cut(pieces: Iterable[memoryview], size: int) -> Iterator[list[memoryview]]:
    block, left = list[memoryview](), size
    for piece in pieces:
        rest = piece
        while rest:
            block.append(rest[:left])
            rest, left = rest[left:], left - len(block[-1])
            if not left:
                yield block
                block, left = [], size
    if block:
        yield block
