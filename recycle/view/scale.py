"""Time as the columns of a terminal: one scale for all charts that stand below each other."""

import math
from collections.abc import Iterator, Sequence

import msgspec

from recycle.view.chart import Chart, Row

WIDEST_QUANTUM = 3
STRETCH = 8
BETWEEN_TICKS = 5
"""Columns from tick to tick, at least."""


class Scale(msgspec.Struct, frozen=True):
    """Time as columns.

    Attributes:
        time: of one column.
        columns: how many there are.
        coarse: whether a column may hold several instructions, because there are more of them than columns.
    """

    time: float
    columns: int
    coarse: bool = False

    def column(self, time: float) -> int:
        """The first column at or behind a time, to the nearest."""
        return round(time / self.time)

    def paced(self, pace: float) -> "Scale":
        """The same columns for a chart of which so many units are one of this scale."""
        return Scale(self.time * pace, self.columns, self.coarse)

    def ticks(self, label: int) -> Iterator[float]:
        """Round times with so many columns between them that a label has room.

        Args:
            label: columns of the longest one.
        """
        least = max(label, BETWEEN_TICKS) * self.time
        power = 10.0 ** math.floor(math.log10(least))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
        step = step if step < 1 else float(math.ceil(step))
        for number in range(math.ceil(self.columns * self.time / step)):
            yield number * step


def make_scale(charts: Sequence[Chart], paces: Sequence[float], room: int) -> Scale:
    """The scale on which the whole of each chart fits.

    A column is the greatest common measure of all times, or a part of it, where all columns then fit; otherwise it is
    as long as it has to be.

    Args:
        charts: what is drawn.
        paces: for each, how many of its time units are one of the scale.
        room: columns that there are.
    """
    end = max((chart.end / pace for chart, pace in zip(charts, paces, strict=True)), default=0.0) or 1.0
    quantum = min(_quantum(chart) / pace for chart, pace in zip(charts, paces, strict=True))
    steps = max(1, math.ceil(end / quantum - 1e-9))
    if steps > room:
        return Scale(end / room, room, coarse=True)
    wide = max(1, min(WIDEST_QUANTUM, room // steps))
    return Scale(quantum / wide, steps * wide)


def mixture(row: Row, scale: Scale) -> list[int]:
    """What to show of a row whose instructions are shorter than columns.

    Each column shows one instruction of those in it, or none. Over a few columns, each kind gets as many of them as it
    has time: what a column cannot show of its time is owed to the next ones.

    Returns:
        For each column the place of a span in the row; -1 where it is idle.
    """
    shares: list[dict[int, float]] = [{} for _ in range(scale.columns)]
    for place, span in enumerate(row.spans):
        first = max(0, int(span.start / scale.time))
        for column in range(first, min(scale.columns, int(span.end / scale.time) + 1)):
            length = min(span.end, (column + 1) * scale.time) - max(span.start, column * scale.time)
            if length > 0:
                shares[column][place] = length / scale.time
    owed: dict[object, float] = {}
    shown = []
    for share in shares:
        kinds: dict[object, int] = {None: -1}
        idle = 1.0
        for place, part in share.items():
            span = row.spans[place]
            kind = (span.instruction.op, row.rerouted(span.instruction))
            # Of a kind, the longest stands for the others.
            if part >= share.get(kinds.get(kind, -1), 0.0):
                kinds[kind] = place
            owed[kind] = owed.get(kind, 0.0) + part
            idle -= part
        owed[None] = owed.get(None, 0.0) + max(0.0, idle)
        best = max(kinds, key=lambda kind: owed[kind])
        owed[best] -= 1
        shown.append(kinds[best])
    return shown


def _quantum(chart: Chart) -> float:
    """The greatest common measure of all times if boxes are then of a readable length, and half the shortest if not."""
    spans = [span for row in chart.rows() for span in row.spans if span.end > span.start]
    lengths = {span.end - span.start for span in spans}
    shortest = min(lengths, default=1.0)
    if all(time == int(time) for time in lengths):
        measure = math.gcd(*(int(span.start) for span in spans), *(int(length) for length in lengths)) or 1
        if shortest / measure <= STRETCH:
            return float(measure)
    return shortest / 2
