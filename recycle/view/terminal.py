"""The terminal view: a row per server, a column per time quantum; and the list form, one instruction per line."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.text import Text

from recycle.plan.instruction import Op
from recycle.record.timeline import Span
from recycle.view.amounts import brief_time, held_text, round_step
from recycle.view.chart import Chart, Row, fate, share
from recycle.view.style import FILL, INK
from recycle.view.subject import Subject
from recycle.wording import time_text

WIDEST_QUANTUM = 3
STRETCH = 8
BETWEEN_TICKS = 5
"""Columns from tick to tick, at least."""
GOLDEN = 0.618
"""Multiples of it are spread evenly between whole numbers, and in no rhythm."""


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
        step = round_step(max(label, BETWEEN_TICKS) * self.time)
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


DEAD, WAITING, VOID = "x", "=", "~"

LETTER: Mapping[Op, str] = {op: op.value[0] for op in Op}
"""Each op, where there are no colours."""


class Frame(NamedTuple):
    """What stands around the columns of time.

    Attributes:
        width: columns of the terminal.
        labels: columns of the names of rows.
        tail: columns of the figures behind rows.
    """

    width: int
    labels: int
    tail: int


def draw(charts: Sequence[Chart], width: int, paces: Sequence[float] = (), *, color: bool = True) -> list[list[Text]]:
    """Charts as lines of text, on one scale on which the whole of each fits.

    Without colours an op is its letter, small where the work is re-routed; with colours it is the background, lighter
    or darker so that greyscale keeps it, and re-routed work is underlined. Where a box is wide enough it holds the
    micro-batch's number.

    Args:
        charts: what to draw.
        width: columns of the terminal.
        paces: for each chart, how many of its time units are one of the first chart's; one each if it is empty.
        color: whether it can show any colour.

    Returns:
        The lines of each chart.
    """
    paces = paces or [1.0] * len(charts)
    rows = [row for chart in charts for row in chart.rows()]
    labels = max((len(row.label) for row in rows), default=0) + 1
    tail = max((len(_tail(row, chart.memory_unit)) for chart in charts for row in chart.rows()), default=0) + 1
    if width - labels - tail < width // 2:
        tail = 0
    scale = make_scale(charts, paces, max(1, width - labels - tail))
    return [
        _draw(chart, scale.paced(pace), Frame(width, labels, tail), color)
        for chart, pace in zip(charts, paces, strict=True)
    ]


def listing(subject: Subject) -> Iterator[str]:
    """One instruction per line, server by server in the order of the program; of a run, in that of the starts.

    There are no times, so that diff shows changes of order alone.
    """
    if subject.plan is not None:
        for server in sorted(subject.plan.programs):
            for instruction in subject.plan.programs[server]:
                yield f"{server} {instruction}"
    else:
        for span in subject.timeline.spans:
            yield f"{span.server} {span.iteration} {span.instruction}"


def _draw(chart: Chart, scale: Scale, frame: Frame, color: bool) -> list[Text]:
    head = [Text(chart.title, style="bold"), Text(_facts(chart))]
    lines: list[Text] = []
    heading = " bubble  memory"[: frame.tail].rjust(frame.tail) if frame.tail else ""
    lines.append(Text(" " * frame.labels + _axis(chart, scale) + heading, style="dim"))
    for group in chart.groups:
        lines.append(Text(group.name, style="dim"))
        for row in group.rows:
            line = Text(row.label.ljust(frame.labels), style="dim strike" if row.dead else "")
            if row.dead and not row.spans:
                line.append(f"x {fate(row)}", style="not dim not strike red" if color else "not dim not strike")
            else:
                for text, style in _cells(row, scale, color):
                    line.append(text, style=style)
                line.append(_tail(row, chart.memory_unit).rjust(frame.tail)[: frame.tail])
            lines.append(line)
    for line in lines:
        line.truncate(frame.width, overflow="crop")
    return [*_wrapped(head, frame.width), *lines, *_wrapped([_legend(chart, scale, color)], frame.width)]


def _wrapped(lines: list[Text], width: int) -> list[Text]:
    console = Console(width=width)
    return [part for line in lines for part in line.wrap(console, width)]


def _cells(row: Row, scale: Scale, color: bool) -> Iterator[tuple[str, str]]:
    gap = _gap(row, scale)
    at = 0
    for place, first, last in _places(row, scale):
        span = row.spans[place]
        if first > at:
            yield from _signs(gap[at:first])
        at = last
        if place in row.void:
            yield VOID * (last - first), "dim"
            continue
        yield _text(row, span, last - first, color), _style(row, span) if color else ""
    yield from _signs(gap[at:])


def _places(row: Row, scale: Scale) -> Iterator[tuple[int, int, int]]:
    """The places of the spans that are drawn, each with its first column and the first behind it.

    A column shows what happens at one moment in it. So each kind gets columns by its time, however short its spans are.
    """
    starts = [span.start for span in row.spans]
    shown = []
    for column in range(scale.columns):
        # The middle of each would miss kinds that alternate at the pace of the columns.
        moment = column * GOLDEN % 1 if scale.coarse else 0.5
        time = (column + moment) * scale.time
        place = bisect_right(starts, time) - 1
        shown.append(place if place >= 0 and time < row.spans[place].end else -1)
    at = 0
    for place, run in groupby(shown):
        first, at = at, at + len(list(run))
        if place >= 0:
            yield place, first, at


def _gap(row: Row, scale: Scale) -> str:
    """What a row shows where no instruction is: idle, waiting for a new view, work that is not recorded, or dead."""
    signs = ["."] * scale.columns
    for sign, times in (
        (WAITING, [(each.noticed, each.resumed) for each in row.recoveries]),
        (VOID, row.unrecorded),
        (DEAD, [(max(0.0, each.start), each.end) for each in row.outages]),
    ):
        for start, end in times:
            first = min(scale.column(start), scale.columns)
            last = scale.columns if end == math.inf else min(scale.column(end), scale.columns)
            signs[first:last] = sign * (last - first)
    return "".join(signs)


def _signs(gap: str) -> Iterator[tuple[str, str]]:
    for sign, run in groupby(gap):
        yield "".join(run), {DEAD: "red", WAITING: "yellow"}.get(sign, "dim")


def _text(row: Row, span: Span, columns: int, color: bool) -> str:
    instruction = span.instruction
    rerouted = row.rerouted(instruction)
    letter, numbered = LETTER[instruction.op], instruction.op.is_compute
    if instruction.op.is_compute:
        letter = letter.lower() if rerouted else letter
        name = (
            f"{instruction.home}.{instruction.micro_batch}"
            if rerouted and columns > 3
            else str(instruction.micro_batch)
        )
    else:
        name = instruction.op.value[1:].lower()
    text = name[-columns:] if color and numbered else (letter + name)
    if not color and len(text) > columns:
        text = letter
    fill = " " if color else "-"
    return text[:columns].ljust(columns, fill)


def _style(row: Row, span: Span) -> str:
    style = _paint(span.instruction.op)
    return f"bold underline {style}" if row.rerouted(span.instruction) else style


def _paint(op: Op) -> str:
    return f"{INK[op]} on {FILL[op]}"


def _tail(row: Row, memory_unit: str) -> str:
    if row.dead:
        return ""
    return f" {share(round(row.bubble, 2)):>6}  {held_text(row.peak, row.limit, memory_unit):>6}"


def _axis(chart: Chart, scale: Scale) -> str:
    """Times along the top, as many as fit."""
    cells = [" "] * scale.columns
    for tick in scale.ticks(len(brief_time(chart.end, chart.time_unit)) + 2):
        text, place = f"|{brief_time(tick, chart.time_unit)}", scale.column(tick)
        if place + len(text) <= scale.columns:
            cells[place : place + len(text)] = text
    return "".join(cells)


def _facts(chart: Chart) -> str:
    return ", ".join(f"{name} {value}" for name, value in chart.facts)


def _legend(chart: Chart, scale: Scale, color: bool) -> Text:
    legend = Text()
    for op in chart.ops:
        name = op.value if color or op.value.startswith(LETTER[op]) else f"{LETTER[op]} {op.value}"
        legend.append(f" {name} ", style=_paint(op) if color else "")
        legend.append(" ")
    if any(row.dead for row in chart.rows()):
        legend.append("underlined" if color else "small letter", style="bold underline" if color else "")
        legend.append(": work of a dead server; ")
    if any(row.recoveries for row in chart.rows()):
        legend.append(f"{WAITING}: waits for a new view; ")
    if any(row.wasted for row in chart.rows()):
        legend.append(f"{VOID}: void, made again after a failure; ")
    if any(row.outages and row.spans for row in chart.rows()):
        legend.append(f"{DEAD}: dead; ")
    legend.append(f"a column is {time_text(scale.time, chart.time_unit)}")
    if scale.coarse:
        legend.append(" and shows one moment in it")
    return legend
