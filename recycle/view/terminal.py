"""The terminal view: a row per server, a column per time quantum; and the list form, one instruction per line."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec
from rich.console import Console
from rich.text import Text

from recycle.plan.instruction import Op
from recycle.record.timeline import Span
from recycle.view.chart import Chart, Row, fate, share
from recycle.view.style import FILL, INK
from recycle.view.subject import Subject
from recycle.wording import number, time_text

MOST_PROBLEMS = 5
WIDEST_QUANTUM = 3
STRETCH = 8
DEAD, WAITING = "x", "="


class Scale(msgspec.Struct, frozen=True):
    """Time as columns.

    Attributes:
        quantum: time of one step of the grid.
        wide: columns per quantum.
        columns: columns that are drawn.
        cropped: columns that did not fit.
    """

    quantum: float
    wide: int
    columns: int
    cropped: int

    def column(self, time: float) -> int:
        """The first column at or behind a time, to the nearest."""
        return round(time / self.quantum * self.wide)


def draw(chart: Chart, width: int, color: bool = True) -> list[Text]:
    """The chart as lines of text.

    Without colours an op is its letter, small where the work is re-routed; with colours it is the background, lighter
    or darker so that greyscale keeps it, and re-routed work is underlined. Where a box is wide enough it holds the
    micro-batch's number.

    Args:
        chart: what to draw.
        width: columns of the terminal.
        color: whether to use colours.
    """
    rows = list(chart.rows())
    labels = max((len(row.label) for row in rows), default=0) + 1
    tails = [_tail(row) for row in rows]
    tail = max((len(each) for each in tails), default=0) + 1
    if width - labels - tail < width // 2:
        tail = 0
    scale = make_scale(chart, max(1, width - labels - tail))
    head = [Text(chart.title, style="bold"), Text(_facts(chart))]
    head += [
        Text(f"ILLEGAL {problem}", style="bold red" if color else "") for problem in chart.problems[:MOST_PROBLEMS]
    ]
    if len(chart.problems) > MOST_PROBLEMS:
        head.append(Text(f"and {len(chart.problems) - MOST_PROBLEMS} more of this kind"))
    lines: list[Text] = []
    heading = " bubble  memory"[:tail].rjust(tail) if tail else ""
    lines.append(Text(" " * labels + _axis(chart, scale) + heading, style="dim"))
    ends = iter(tails)
    for group in chart.groups:
        lines.append(Text(group.name, style="dim"))
        for row in group.rows:
            line = Text(row.label.ljust(labels), style="dim strike" if row.dead else "")
            end = next(ends)
            if row.dead and not row.spans:
                line.append(f"x {fate(row)}", style="not dim not strike red" if color else "not dim not strike")
            else:
                for text, style in _cells(chart, row, scale, color):
                    line.append(text, style=style)
                line.append(end.rjust(tail)[:tail])
            lines.append(line)
    for line in lines:
        line.truncate(width, overflow="crop")
    return [*_wrapped(head, width), *lines, *_wrapped(_legend(chart, scale, color), width)]


def listing(subject: Subject) -> Iterator[str]:
    """One instruction per line, server by server in the order of the program; of a run, in that of the starts.

    A wrong one is followed by what is wrong. There are no times, so that diff shows changes of order alone.
    """
    wrong = {(each.server, each.index): each.message for each in subject.violations}
    if subject.plan is not None:
        for server in sorted(subject.plan.programs):
            for index, instruction in enumerate(subject.plan.programs[server]):
                objection = wrong.get((server, index))
                yield f"{server} {instruction}" + (f"    WRONG: {objection}" if objection else "")
    elif subject.timeline is not None:
        for span in subject.timeline.spans:
            yield f"{span.server} {span.iteration} {span.instruction}"


def make_scale(chart: Chart, room: int) -> Scale:
    """The time of a column: the greatest common measure of all times, if boxes are then of a readable length."""
    spans = [span for row in chart.rows() for span in row.spans if span.end > span.start]
    lengths = {span.end - span.start for span in spans}
    shortest = min(lengths, default=1.0)
    quantum = shortest / 2
    if all(time == int(time) for time in lengths):
        measure = math.gcd(*(int(span.start) for span in spans), *(int(length) for length in lengths)) or 1
        if shortest / measure <= STRETCH:
            quantum = measure
    steps = max(1, math.ceil(chart.end / quantum)) if quantum else 1
    wide = max(1, min(WIDEST_QUANTUM, room // steps))
    return Scale(quantum or 1, wide, min(room, steps * wide), max(0, steps * wide - room))


def _wrapped(lines: list[Text], width: int) -> list[Text]:
    console = Console(width=width)
    return [part for line in lines for part in line.wrap(console, width)]


def _cells(chart: Chart, row: Row, scale: Scale, color: bool) -> Iterator[tuple[str, str]]:
    gap = _gap(row, scale)
    at = 0
    for span in row.spans:
        first, last = scale.column(span.start), min(scale.column(span.end), scale.columns)
        if last <= max(first, at):
            continue
        if first > at:
            yield from _signs(gap[at:first])
            at = first
        wrong = (row.server, span.index) in chart.wrong
        yield _text(row, span, last - at, color, wrong), _style(row, span, wrong) if color else ""
        at = last
    yield from _signs(gap[at:])


def _gap(row: Row, scale: Scale) -> str:
    """What a row shows where no instruction is: idle, waiting for a new view, or dead."""
    signs = ["."] * scale.columns
    for sign, times in (
        (WAITING, [(each.noticed, each.resumed) for each in row.recoveries]),
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


def _text(row: Row, span: Span, columns: int, color: bool, wrong: bool) -> str:
    instruction = span.instruction
    rerouted = row.rerouted(instruction)
    letter = instruction.op.value[0]
    if instruction.op.is_compute:
        letter = letter.lower() if rerouted else letter
        name = (
            f"{instruction.home}.{instruction.micro_batch}"
            if rerouted and columns > 3
            else str(instruction.micro_batch)
        )
    else:
        name = instruction.op.value[1:].lower()
    text = name[-columns:] if color and instruction.op.is_compute else (letter + name)
    if not color and len(text) > columns:
        text = letter
    if wrong and not color:
        text = "!" + text[1:]
    fill = " " if color else "-"
    return text[:columns].ljust(columns, fill)


def _style(row: Row, span: Span, wrong: bool) -> str:
    instruction = span.instruction
    style = f"{INK[instruction.op]} on {FILL[instruction.op]}"
    if wrong:
        return "bold white on red"
    return f"bold underline {style}" if row.rerouted(instruction) else style


def _tail(row: Row) -> str:
    if row.dead:
        return ""
    peak = "" if row.peak is None else number(row.peak) if row.limit is None else f"{row.peak}/{row.limit}"
    return f" {share(round(row.bubble, 2)):>6}  {peak:>6}"


def _axis(chart: Chart, scale: Scale) -> str:
    """Times along the top, as many as fit."""
    cells = [" "] * scale.columns
    longest = len(number(chart.end)) + 2
    step = 5
    while step * scale.wide < longest:
        step *= 2
    for quantum in range(0, scale.columns // scale.wide + 1, step):
        text = f"|{number(quantum * scale.quantum)}"
        place = quantum * scale.wide
        if place + len(text) <= scale.columns:
            cells[place : place + len(text)] = text
    return "".join(cells)


def _facts(chart: Chart) -> str:
    return ", ".join(f"{name} {value}" for name, value in chart.facts)


def _legend(chart: Chart, scale: Scale, color: bool) -> list[Text]:
    used = {span.instruction.op for row in chart.rows() for span in row.spans if span.end > span.start}
    ops: Sequence[Op] = [op for op in Op if op in used]
    legend = Text()
    for op in ops:
        legend.append(f" {op.value} ", style=f"{INK[op]} on {FILL[op]}" if color else "")
        legend.append(" ")
    if any(row.dead for row in chart.rows()):
        legend.append("underlined" if color else "small letter", style="bold underline" if color else "")
        legend.append(": work of a dead server; ")
    if any(row.recoveries for row in chart.rows()):
        legend.append(f"{WAITING}: waits for a new view; ")
    if any(row.outages and row.spans for row in chart.rows()):
        legend.append(f"{DEAD}: dead; ")
    legend.append(f"a column is {time_text(scale.quantum / scale.wide, chart.time_unit)}")
    lines = [legend]
    if scale.cropped:
        shown = scale.columns / (scale.columns + scale.cropped)
        lines.append(
            Text(f"cropped: {share(round(shown, 2))} of the time fits; see the rest in a wider terminal or with --html")
        )
    return lines
