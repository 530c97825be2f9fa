"""The spans of each server's last iterations, of as many as are wanted."""

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Generic, TypeVar

from recycle.record.recording import SpanLine
from recycle.record.timeline import Span

_T = TypeVar("_T", Span, SpanLine)

BESIDE = 2
"""Iterations that are kept beside the wanted ones: that before them, which tells when they begin, and one in flight."""


class LatestSpans(Generic[_T]):
    """Keeps the spans of the iterations that each server began last.

    Args:
        iterations: how many of them are wanted; None for all.
    """

    def __init__(self, iterations: int | None) -> None:
        self._most = math.inf if iterations is None else iterations + BESIDE
        self._of: dict[object, dict[int, list[_T]]] = defaultdict(dict)

    def add(self, span: _T) -> None:
        """Take in a span. Those of one life of a server come in the order of its work; its lives come in any order."""
        kept = self._of[span.server]
        kept.setdefault(span.iteration, []).append(span)
        if len(kept) > self._most:
            del kept[min(kept, key=lambda each: kept[each][0].start)]

    def __iter__(self) -> Iterator[_T]:
        return (span for kept in self._of.values() for spans in kept.values() for span in spans)
