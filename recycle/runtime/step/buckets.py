"""Buckets: parts of a chunk's gradients that are reduced one after the other, each as soon as all of it is complete."""

from collections.abc import Sequence
from itertools import pairwise


class Buckets:
    """The buckets of one chunk, and how far they are.

    Weight gradients come from the last layer to the first, and so do buckets. All peers begin them in this order, each
    peer whenever it can.

    Args:
        first: the place of the chunk's first parameter among the main ones of its server.
        sizes: how many numbers each of the chunk's parameters has.
        least: how many a bucket has at least; 0 where all are in one.

    Attributes:
        parts: of the main parameters, in the order in which they begin.
    """

    def __init__(self, first: int, sizes: Sequence[int], least: int) -> None:
        self.parts = _cut(first, sizes, least)
        self.begin()

    def begin(self) -> None:
        """Begin an iteration, of which nothing is complete."""
        self._begun = 0
        self._complete: set[int] = set()

    def complete(self, place: int) -> Sequence[slice]:
        """One more parameter has its last gradient: the buckets that begin therefore.

        Args:
            place: of the parameter.
        """
        self._complete.add(place)
        begun = self._begun
        for part in self.parts[begun:]:
            if not self._complete.issuperset(range(part.start, part.stop)):
                break
            self._begun += 1
        return self.parts[begun : self._begun]

    def rest(self) -> Sequence[slice]:
        """All parameters have their last gradient: the buckets that have not begun."""
        begun, self._begun = self._begun, len(self.parts)
        return self.parts[begun:]


def _cut(first: int, sizes: Sequence[int], least: int) -> Sequence[slice]:
    edges, size = [first + len(sizes)], 0
    for place, numbers in reversed(list(enumerate(sizes, first))):
        size += numbers
        if 0 < least <= size:
            edges.append(place)
            size = 0
    # What is left over is not worth a reduction of its own.
    edges[max(1, len(edges) - 1) :] = [first]
    return [slice(start, stop) for stop, start in pairwise(edges)]
