"""The picture of charts: which shapes are where, in pixels. The SVG view draws it."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Literal

import msgspec

from recycle.errors import UserError
from recycle.plan.instruction import Op
from recycle.record.timeline import Outage, Span
from recycle.view.amounts import brief_time, held_text, round_step
from recycle.view.chart import Chart, Row, RowGroup, phases, share, whereabouts
from recycle.view.style import BACK, EDGES, FILL, HOME, INK, MEANING, PALE, PAUSE, VOID, home_color, label
from recycle.wording import BYTES, MICROSECONDS, number, time_text

BOX = 22.0
"""Width of the shortest box, in pixels."""
ROW = 22
PITCH = 25
NARROWEST = 3.0
"""Width of the shortest box where there are so many that they leave no room for numbers."""
WIDEST = 9_000
"""Pixels of the longest time axis that is still looked at as a whole."""
GROUP_GAP = 30
MARGIN = 12
BETWEEN = "  \u00b7  "
"""Between two facts of the head."""
SIZE = 11.0
"""Of most texts."""
DARK, DIM, GRID, PAPER, IDLE, BOUNDARY = "#1c2430", "#5b6573", "#d8dde3", "#ffffff", "#f1f3f5", "#5b3f86"


class Box(msgspec.Struct, frozen=True):
    """A rectangle.

    Attributes:
        x: its left.
        y: its top.
        width: of it.
        height: of it.
        fill: its colour; none if it is empty.
        edge: the colour of its edge and hatch; none if it is empty.
        thick: how wide the edge is.
        pale: how much of the colours is left.
        round: the radius of its corners.
        hatched: whether it has a hatch.
    """

    x: float
    y: float
    width: float
    height: float
    fill: str = ""
    edge: str = ""
    thick: float = 2.5
    pale: float = 1.0
    round: float = 0.0
    hatched: bool = False


class Line(msgspec.Struct, frozen=True):
    """A line from point to point; what is in it may be filled."""

    points: tuple[tuple[float, float], ...]
    color: str
    thick: float = 1.0
    dashed: bool = False
    filled: bool = False


class Text(msgspec.Struct, frozen=True):
    """A line of text.

    Attributes:
        x: where its anchor is.
        y: of its base line.
        content: what it says.
        anchor: the part of it that is there.
        size: of its letters.
        color: of its letters.
        bold: whether they are.
        halo: the colour of what surrounds them; none if it is empty.
        turned: whether it goes upwards.
    """

    x: float
    y: float
    content: str
    anchor: Literal["start", "middle", "end"] = "start"
    size: float = SIZE
    color: str = DARK
    bold: bool = False
    halo: str = ""
    turned: bool = False


class Group(msgspec.Struct, frozen=True):
    """Shapes of one thing, and what is said of it where the picture is pointed at."""

    kind: str
    title: str
    shapes: tuple["Shape", ...]
    pale: float = 1.0


Shape = Box | Line | Text | Group


class Picture(msgspec.Struct, frozen=True):
    """Shapes in the order in which they are painted, and the size of them all in pixels."""

    title: str
    width: int
    height: int
    shapes: tuple[Shape, ...]


def make_picture(charts: Sequence[Chart], paces: Sequence[float] = ()) -> Picture:
    """Lay out one chart, or several below each other on one time axis.

    Fill is the op, outline and hatch the home pipeline of re-routed work; I has an edge above, W below and B both, so
    that greyscale keeps them apart. Above each group, or below the whole where there is a barrier, stands how long an
    iteration is and of what.

    Args:
        charts: what to draw.
        paces: for each chart, how many of its time units are one of the first chart's; one each if it is empty.

    Raises:
        UserError: it would be too wide to be looked at.
    """
    paces = paces or [1.0] * len(charts)
    left = 34.0 + 7.4 * max((len(row.label) for chart in charts for row in chart.rows()), default=4)
    ends = [(chart.end / pace, _columns(chart)[-1] + MARGIN) for chart, pace in zip(charts, paces, strict=True)]
    end = max(end for end, _ in ends) or 1.0
    short = _short_box(charts[0])
    _require_readable(charts, end / short)
    scale = min(BOX / short, WIDEST / end)
    width = math.ceil(max(720.0, *(left + end * scale + behind for end, behind in ends)))
    height, shapes = 0.0, list[Shape]()
    for chart, pace in zip(charts, paces, strict=True):
        drawing = _Drawing(chart, left, scale / pace, width)
        shapes += drawing.draw(height)
        height = drawing.bottom
    return Picture(charts[0].title, width, math.ceil(height), tuple(shapes))


def _short_box(chart: Chart) -> float:
    """The length of the shortest boxes. Measured lengths differ, and a few may be much shorter than all others."""
    spans = [span for row in chart.rows() for span in row.spans if span.end > span.start]
    lengths = sorted(span.end - span.start for span in spans if span.instruction.op.is_compute)
    return lengths[len(lengths) // 10] if lengths else 1.0


def _require_readable(charts: Sequence[Chart], boxes: float) -> None:
    """Of a single iteration boxes are as narrow as they have to be.

    Raises:
        UserError: of so many, those of several iterations would be too narrow to be told apart.
    """
    iterations = 1 + max((window.iteration for chart in charts for window in chart.windows), default=0)
    if iterations > 1 and boxes * NARROWEST > WIDEST:
        fitting = max(1, int(iterations * WIDEST / (boxes * NARROWEST)))
        raise UserError(
            f"{charts[0].title}: a picture of {iterations} iterations would be {boxes * BOX:,.0f} pixels wide, "
            f"and {WIDEST:,} can be looked at: take a few with --iterations {fitting}, or write a page with --html"
        )


def _columns(chart: Chart) -> tuple[float, float, float]:
    """Where the figures behind rows end: busy, bubble, memory."""
    busy = 44 if chart.time_unit not in MICROSECONDS else 68
    return busy, busy + 52, busy + (112 if chart.memory_unit not in BYTES else 148)


class _Drawing:
    """One chart of a picture.

    Args:
        chart: what to draw.
        left: where time 0 is.
        scale: pixels per unit of its time.
        width: of the picture.

    Attributes:
        bottom: where what is drawn so far ends.
    """

    def __init__(self, chart: Chart, left: float, scale: float, width: float) -> None:
        self.bottom = 0.0
        self._chart, self._left, self._scale, self._width = chart, left, scale, width
        self._right = self._x(chart.end)

    def draw(self, top: float) -> Iterator[Shape]:
        """Draw it from a height on."""
        chart, self.bottom = self._chart, top
        yield from self._head()
        axis = self.bottom + (24 if chart.views else 16)
        places: list[tuple[RowGroup, float]] = []
        y = axis + 8
        for group in chart.groups:
            places.append((group, y))
            y += GROUP_GAP + PITCH * len(group.rows)
        bottom = y + 4
        yield from self._grid(axis, bottom)
        for group, place in places:
            yield from self._group(group, place)
        yield from self._boundaries(places, axis, bottom)
        yield from self._views(axis, bottom)
        if chart.barrier:
            yield from self._barrier(bottom + 14)
        self.bottom = bottom + (42 if chart.barrier else 24)
        yield from self._legend()

    def _x(self, time: float) -> float:
        return self._left + time * self._scale

    def _head(self) -> Iterator[Shape]:
        chart = self._chart
        yield Text(12, self.bottom + 24, chart.title, size=15, bold=True)
        lines: list[str] = []
        for name, value in chart.facts:
            fact = f"{name}: {value}"
            # 7.2 pixels is more than a letter of a fact takes on average, so that no line is cut off at the right.
            if lines and 24 + 7.2 * len(lines[-1] + BETWEEN + fact) <= self._width:
                lines[-1] += BETWEEN + fact
            else:
                lines.append(fact)
        self.bottom += 26
        for line in lines:
            self.bottom += 18
            yield Text(12, self.bottom, line, size=12)
        self.bottom += 10

    def _grid(self, axis: float, bottom: float) -> Iterator[Shape]:
        chart = self._chart
        # About ten ticks.
        step = round_step(chart.end / 12) if chart.end > 0 else 1.0
        for tick in range(int(chart.end / step) + 1):
            x = self._x(tick * step)
            yield Line(((x, axis + 4), (x, bottom)), GRID)
            yield Text(x, axis, brief_time(tick * step, chart.time_unit), "middle", color=DIM)
        for name, offset in zip(("busy", "bubble", "memory"), _columns(chart), strict=True):
            yield Text(self._right + offset, axis, name, "end", color=DIM)

    def _group(self, group: RowGroup, top: float) -> Iterator[Shape]:
        chart = self._chart
        yield Text(12, top + 15, group.name, color=DIM)
        if chart.grouping == "stage" and not chart.barrier:
            for window in chart.windows:
                if window.stage == group.rows[0].server.stage:
                    yield from self._window(window.start, window.end, top + 12, chart.caption(window))
        for place, row in enumerate(group.rows):
            yield from self._row(row, top + 20 + PITCH * place)

    def _row(self, row: Row, y: float) -> Iterator[Shape]:
        chart, right = self._chart, self._right
        yield Text(12, y + 15, row.label, bold=True)
        if row.spans or not row.dead:
            yield Box(self._left, y, right - self._left, ROW, IDLE)
        if not row.dead:
            memory = held_text(row.peak, row.limit, chart.memory_unit)
            texts = brief_time(row.busy, chart.time_unit), share(row.bubble), memory
            for text, offset in zip(texts, _columns(chart), strict=True):
                yield Text(right + offset, y + 15, text, "end")
        for outage in row.outages:
            yield self._outage(row, outage, y)
        for recovery in row.recoveries:
            pause = max(1.0, (recovery.resumed - recovery.noticed) * self._scale)
            title = f"{recovery.server} {phases(recovery, chart.time_unit)}"
            yield Group("pause", title, (Box(self._x(recovery.noticed), y, pause, ROW, PAUSE),))
        for start, end in row.unrecorded:
            lost = Box(self._x(start), y, (end - start) * self._scale, ROW, VOID, pale=PALE)
            yield Group("void", f"{row.server}: void, what it computed here died with it", (lost,))
        for index, span in enumerate(row.spans):
            void = index in row.void
            if void or span.end > span.start:
                yield self._box(row, span, y, void=void)

    def _box(self, row: Row, span: Span, y: float, *, void: bool) -> Group:
        instruction, op = span.instruction, span.instruction.op
        x, width = self._x(span.start), max(2.0, (span.end - span.start) * self._scale)
        begin, end = (brief_time(time, self._chart.time_unit) for time in (span.start, span.end))
        title = f"{instruction} on {row.server}: {MEANING[op]}, {begin} to {end}"
        shapes: list[Shape] = [*_filled(op, x + 0.5, y, width - 1, ROW)]
        text, halo = label(instruction), ""
        if row.rerouted(instruction):
            home, halo = instruction.home, FILL[op]
            title += f", re-routed from pipeline {home}"
            inner = x + 1.75, y + 1.25, max(0.0, width - 3.5), ROW - 2.5
            shapes.append(Box(*inner, edge=home_color(home), round=2, hatched=True))
            text = f"{home}.{text}" if width >= 6.2 * (len(text) + 1 + len(str(home))) else text
        if width >= 6.2 * len(text):
            shapes.append(Text(x + width / 2, y + 15, text, "middle", 10.5, INK[op], halo != "", halo))
        title += "; void: the iteration was made again" if void else ""
        return Group("box", title, tuple(shapes), PALE if void else 1.0)

    def _outage(self, row: Row, outage: Outage, y: float) -> Group:
        color, text = home_color(row.server.pipeline), whereabouts(row, outage)
        always = outage.start == -math.inf
        start = 8.0 if always else self._x(outage.start)
        stop = self._right if outage.end == math.inf else self._x(outage.end)
        shapes: list[Shape] = []
        if not always:
            shapes.append(Box(start, y, stop - start, ROW, PAPER))
            shapes.append(Line(((start, y), (start, y + ROW)), color, 3))
        shapes.append(Line(((start, y + ROW / 2), (stop, y + ROW / 2)), color, 2))
        width = 6.8 * len(text) + 20
        x = max(self._left, start) + 14
        if always or x + width < stop:
            shapes.append(Box(x, y + 1.5, width, ROW - 3, PAPER, color, 1.5, round=9))
            shapes.append(Text(x + width / 2, y + 15, text, "middle", color=color, bold=True))
        if outage.end < math.inf:
            back = ((stop, y), (stop, y + ROW), (stop + 8, y + ROW / 2))
            shapes.append(Line(back, BACK, filled=True))
        return Group("outage", "" if always else text, tuple(shapes))

    def _views(self, axis: float, bottom: float) -> Iterator[Shape]:
        """A line where each view begins, with its number where there is room."""
        free = -math.inf
        for view in self._chart.views:
            x = self._x(view.time)
            yield Group("view", view.text, (Line(((x, axis - 9), (x, bottom)), DARK, 1.4),))
            if x > free:
                yield Text(x + 3, axis - 11, view.name, bold=True)
                free = x + 8 + 7 * len(view.name)

    def _window(self, start: float, end: float, y: float, text: str) -> Iterator[Shape]:
        """A dimension line with its length."""
        first, last = self._x(start), self._x(end)
        for line in (((first, y - 4), (first, y + 4)), ((last, y - 4), (last, y + 4)), ((first, y), (last, y))):
            yield Line(line, DIM, 1.2)
        width, middle = 6.6 * len(text) + 8, (first + last) / 2
        yield Box(middle - width / 2, y - 7, width, 14, PAPER)
        yield Text(middle, y + 4, text, "middle", bold=True)

    def _barrier(self, y: float) -> Iterator[Shape]:
        """Dimension lines below everything: compute until the barrier, and the optimizer behind it."""
        chart = self._chart
        for iteration, windows in groupby(chart.windows, attrgetter("iteration")):
            start, mine = iteration * chart.period, list(windows)
            barrier, end = max(window.step for window in mine), max(window.end for window in mine)
            text = f"all compute: {time_text(barrier - start, chart.time_unit)}"
            yield from self._window(start, barrier, y, text)
            if end > barrier:
                yield from self._window(barrier, end, y, f"{number(end - barrier)}")

    def _boundaries(self, places: Sequence[tuple[RowGroup, float]], axis: float, bottom: float) -> Iterator[Shape]:
        """Where an iteration ends: a line behind a barrier, or steps from stage to stage of a staggered optimizer."""
        chart = self._chart
        for _, windows in groupby(chart.windows, attrgetter("iteration")):
            ends = {window.stage: window.end for window in windows}
            points: list[tuple[float, float]] = []
            if chart.barrier:
                x = self._x(max(ends.values()))
                points = [(x, axis + 4), (x, bottom)]
            elif chart.grouping == "stage":
                for group, y in places:
                    if (end := ends.get(group.rows[0].server.stage)) is not None:
                        x = self._x(end)
                        points.append((x, points[-1][1] if points else y + 4))
                        points.append((x, y + GROUP_GAP + PITCH * len(group.rows)))
            if points:
                yield Line(tuple(points), BOUNDARY, 1.6, dashed=True)

    def _legend(self) -> Iterator[Shape]:
        x = 12.0
        for sample, text in self._entries():
            length = 21 + 6.4 * len(text) + 16
            if x + length > self._width:
                x, self.bottom = 12.0, self.bottom + 20
            for each in sample:
                yield msgspec.structs.replace(each, x=x, y=self.bottom - 11 + each.y)
            yield Text(x + 21, self.bottom, text)
            x += length
        self.bottom += 12

    def _entries(self) -> Iterator[tuple[Sequence[Box], str]]:
        """What the legend explains: how it looks, and what it is."""
        chart, size = self._chart, (0.0, 0.0, 16.0, 14.0)
        for op in chart.ops:
            yield list(_filled(op, *size)), f"{op.value} {MEANING[op]}" if op.is_compute else MEANING[op]
        spans = [(row, span.instruction) for row in chart.rows() for span in row.spans]
        homes = sorted({instruction.home for row, instruction in spans if row.rerouted(instruction)})
        for home in homes[: len(HOME)]:
            yield [Box(*size, edge=home_color(home), round=2, hatched=True)], f"work of pipeline {home}, re-routed"
        if any(row.recoveries for row in chart.rows()):
            yield [Box(*size, PAUSE, round=2)], "changes views"
        if any(row.wasted for row in chart.rows()):
            yield [Box(*size, VOID, pale=PALE, round=2)], "pale: void, made again after a failure"


def _filled(op: Op, x: float, y: float, width: float, height: float) -> Iterator[Box]:
    """The box of an op, with its edges."""
    yield Box(x, y, width, height, FILL[op], round=2)
    for side, top in (("top", y), ("bottom", y + height - 2.5)):
        if side in EDGES.get(op, ""):
            yield Box(x, top, width, 2.5, INK[Op.B], pale=0.75)
