"""The SVG view: a still picture for papers and pages. The same chart gives the same bytes."""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from recycle.errors import UserError
from recycle.plan.instruction import Op
from recycle.record.recording import RecoveryLine
from recycle.record.timeline import Outage, Span
from recycle.view.amounts import brief_time, held_text, round_step
from recycle.view.chart import Chart, Row, RowGroup, phases, share, whereabouts
from recycle.view.panel import Panel
from recycle.view.style import BACK, EDGES, FILL, HOME, INK, MEANING, PALE, PAUSE, VOID, WRONG, home_color, label
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
MOST_PROBLEMS = 5
BETWEEN = "  \u00b7  "
"""Between two facts of the head."""

STYLE = """
text{font:11px 'DejaVu Sans',Verdana,Arial,sans-serif;fill:#1c2430}
.title{font-size:15px;font-weight:bold}.fact{font-size:12px}.name{font-weight:bold}.dim{fill:#5b6573}
.problem{fill:#d00000;font-weight:bold}.box text{font-size:10.5px;text-anchor:middle}.right{text-anchor:end}
.mid{text-anchor:middle}.grid{stroke:#d8dde3;stroke-width:1}.window{stroke:#5b6573;stroke-width:1.2;fill:none}
.idle{fill:#f1f3f5}.edge{fill:#14181d;fill-opacity:.75}
.boundary{stroke:#5b3f86;stroke-width:1.6;stroke-dasharray:5 3;fill:none}
"""


class Canvas:
    """Elements in the order in which they are painted, and the scale of the time axis.

    Args:
        left: where time 0 is.
        scale: pixels per unit of time.
    """

    def __init__(self, left: float, scale: float) -> None:
        self.left = left
        self.scale = scale
        self.parts: list[str] = []

    def x(self, time: float) -> float:
        """The place of a time."""
        return self.left + time * self.scale

    def add(self, element: str) -> None:
        """Paint an element over all before it."""
        self.parts.append(element)

    def text(self, x: float, y: float, content: str, classes: str = "") -> None:
        """Paint text; it is escaped."""
        self.parts.append(f'<text x="{_n(x)}" y="{_n(y)}" class="{classes}">{escape(content)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, classes: str) -> None:
        """Paint a straight line."""
        self.parts.append(f'<path d="M{_n(x1)} {_n(y1)}L{_n(x2)} {_n(y2)}" class="{classes}"/>')


def encode(panels: Sequence[Panel], target: Path) -> bytes:
    """The picture as a file."""
    return draw([panel.chart for panel in panels], [panel.pace for panel in panels]).encode()


def draw(charts: Sequence[Chart], paces: Sequence[float] = ()) -> str:
    """One chart as an SVG document, or several below each other on one time axis.

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
    scale = _scale(charts, paces)
    left = 34.0 + 7.4 * max((len(row.label) for chart in charts for row in chart.rows()), default=4)
    canvases = [Canvas(left, scale / pace) for pace in paces]
    width = math.ceil(
        max(
            720.0,
            *(
                canvas.x(chart.end) + _columns(chart)[-1] + MARGIN
                for canvas, chart in zip(canvases, charts, strict=True)
            ),
        )
    )
    height = 0
    parts: list[str] = []
    for canvas, chart in zip(canvases, charts, strict=True):
        own = _paint(canvas, chart, width)
        parts.append(f'<g transform="translate(0 {height})">\n' + "\n".join(canvas.parts) + "\n</g>")
        height += own
    homes = sorted({each for chart in charts for each in _rerouted_homes(chart)})
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">\n'
        f"<title>{escape(charts[0].title)}</title>\n<style>{STYLE}</style>\n"
        f"<defs>{''.join(_hatch(home) for home in homes)}</defs>\n"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _scale(charts: Sequence[Chart], paces: Sequence[float]) -> float:
    """Pixels per time unit of the first chart: so many that numbers fit in its boxes, or as many as there is room for.

    Of a single iteration boxes are as narrow as they have to be.

    Raises:
        UserError: boxes of several iterations would be too narrow to be told apart.
    """
    end = max(chart.end / pace for chart, pace in zip(charts, paces, strict=True)) or 1.0
    spans = [span for row in charts[0].rows() for span in row.spans if span.end > span.start]
    lengths = sorted(span.end - span.start for span in spans if span.instruction.op.is_compute)
    # Measured lengths differ, and a few may be much shorter than all others.
    short = lengths[len(lengths) // 10] if lengths else 1.0
    iterations = 1 + max((window.iteration for chart in charts for window in chart.windows), default=0)
    if iterations > 1 and end / short * NARROWEST > WIDEST:
        fitting = max(1, int(iterations * WIDEST / (end / short * NARROWEST)))
        raise UserError(
            f"{charts[0].title}: a picture of {iterations} iterations would be {end / short * BOX:,.0f} pixels wide, "
            f"and {WIDEST:,} can be looked at: take a few with --iterations {fitting}, or write a page with --html"
        )
    return min(BOX / short, WIDEST / end)


def _paint(canvas: Canvas, chart: Chart, width: float) -> int:
    """Paint a chart from the top; returns its height."""
    right = canvas.x(chart.end)
    top = _head(canvas, chart, width) + (8 if chart.views else 0)
    axis = top + 16
    y = float(axis + 8)
    places: list[tuple[RowGroup, float]] = []
    for group in chart.groups:
        places.append((group, y))
        y += GROUP_GAP + PITCH * len(group.rows)
    bottom = y + 4
    _grid(canvas, chart, axis, bottom)
    for name, offset in zip(("busy", "bubble", "memory"), _columns(chart), strict=True):
        canvas.text(right + offset, axis, name, "dim right")
    for group, place in places:
        _group(canvas, chart, group, place, right)
    _boundaries(canvas, chart, places, axis, bottom)
    _views(canvas, chart, axis, bottom)
    foot = _barrier(canvas, chart, bottom) if chart.barrier else bottom + 10
    return math.ceil(_legend(canvas, chart, foot + 14, width) + 12)


def _head(canvas: Canvas, chart: Chart, width: float) -> float:
    canvas.text(12, 24, chart.title, "title")
    lines: list[str] = []
    for name, value in chart.facts:
        fact = f"{name}: {value}"
        # 7.2 pixels is more than a letter of a fact takes on average, so that no line is cut off at the right.
        if lines and 24 + 7.2 * len(lines[-1] + BETWEEN + fact) <= width:
            lines[-1] += BETWEEN + fact
        else:
            lines.append(fact)
    y = 26.0
    for line in lines:
        y += 18
        canvas.text(12, y, line, "fact")
    shown = [f"ILLEGAL: {problem}" for problem in chart.problems[:MOST_PROBLEMS]]
    if len(chart.problems) > MOST_PROBLEMS:
        shown.append(f"and {len(chart.problems) - MOST_PROBLEMS} more of this kind")
    for problem in shown:
        y += 18
        canvas.text(12, y, problem, "problem")
    return y + 10


def _grid(canvas: Canvas, chart: Chart, axis: float, bottom: float) -> None:
    # About ten ticks.
    step = round_step(chart.end / 12) if chart.end > 0 else 1.0
    for tick in range(int(chart.end / step) + 1):
        x = canvas.x(tick * step)
        canvas.line(x, axis + 4, x, bottom, "grid")
        canvas.text(x, axis, brief_time(tick * step, chart.time_unit), "dim mid")


def _columns(chart: Chart) -> tuple[float, float, float]:
    """Where the figures behind rows end: busy, bubble, memory."""
    busy = 44 if chart.time_unit not in MICROSECONDS else 68
    return busy, busy + 52, busy + (112 if chart.memory_unit not in BYTES else 148)


def _group(canvas: Canvas, chart: Chart, group: RowGroup, top: float, right: float) -> None:
    canvas.text(12, top + 15, group.name, "dim")
    if chart.grouping == "stage" and not chart.barrier:
        stage = group.rows[0].server.stage
        for window in chart.windows:
            if window.stage == stage:
                _window(canvas, window.start, window.end, top + 12, chart.caption(window))
    for place, row in enumerate(group.rows):
        y = top + 20 + PITCH * place
        base = y + 15
        canvas.text(12, base, row.label, "name")
        if row.spans or not row.dead:
            size = f'x="{_n(canvas.left)}" y="{_n(y)}" width="{_n(right - canvas.left)}" height="{ROW}"'
            canvas.add(f'<rect {size} class="idle"/>')
        if not row.dead:
            texts = (
                brief_time(row.busy, chart.time_unit),
                share(row.bubble),
                held_text(row.peak, row.limit, chart.memory_unit),
            )
            for text, offset in zip(texts, _columns(chart), strict=True):
                canvas.text(right + offset, base, text, "right")
        for outage in row.outages:
            _outage(canvas, row, outage, y, right)
        for recovery in row.recoveries:
            _recovery(canvas, chart, recovery, y)
        for start, end in row.unrecorded:
            _unrecorded(canvas, row, (start, end), y)
        for index, span in enumerate(row.spans):
            if index in row.void:
                canvas.add(f'<g opacity="{PALE}">{_box(canvas, chart, row, span, y, void=True)}</g>')
            elif span.end > span.start or (row.server, span.index) in chart.wrong:
                canvas.add(_box(canvas, chart, row, span, y))


def _unrecorded(canvas: Canvas, row: Row, times: tuple[float, float], y: float) -> None:
    x, width = canvas.x(times[0]), (times[1] - times[0]) * canvas.scale
    canvas.add(
        f'<g class="void"><title>{row.server}: void, what it computed here died with it</title>'
        f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{ROW}" fill="{VOID}" opacity="{PALE}"/></g>'
    )


def _box(canvas: Canvas, chart: Chart, row: Row, span: Span, y: float, *, void: bool = False) -> str:
    instruction, op = span.instruction, span.instruction.op
    x, width = canvas.x(span.start), max(2.0, (span.end - span.start) * canvas.scale)
    objection = chart.wrong.get((row.server, span.index))
    rerouted = row.rerouted(instruction)
    begin, end = brief_time(span.start, chart.time_unit), brief_time(span.end, chart.time_unit)
    title = f"{instruction} on {row.server}: {MEANING[op]}, {begin} to {end}"
    if rerouted:
        title += f", re-routed from pipeline {instruction.home}"
    if void:
        title += "; void: the iteration was made again"
    if objection:
        title += f"; WRONG: {objection}"
    size = f'x="{_n(x + 0.5)}" y="{_n(y)}" width="{_n(width - 1)}" height="{ROW}"'
    parts = [f'<g class="box"><title>{escape(title)}</title><rect {size} rx="2" fill="{FILL[op]}"/>']
    edges = EDGES.get(op, "")
    if "top" in edges:
        parts.append(f'<rect x="{_n(x + 0.5)}" y="{_n(y)}" width="{_n(width - 1)}" height="2.5" class="edge"/>')
    if "bottom" in edges:
        parts.append(
            f'<rect x="{_n(x + 0.5)}" y="{_n(y + ROW - 2.5)}" width="{_n(width - 1)}" height="2.5" class="edge"/>'
        )
    text = label(instruction)
    if rerouted:
        inner = f'x="{_n(x + 1.75)}" y="{_n(y + 1.25)}" width="{_n(max(0.0, width - 3.5))}" height="{ROW - 2.5}"'
        home = instruction.home
        parts.append(f'<rect {inner} rx="2" fill="url(#home{home})" stroke="{home_color(home)}" stroke-width="2.5"/>')
        text = f"{home}.{text}" if width >= 6.2 * (len(text) + 1 + len(str(home))) else text
    if width >= 6.2 * len(text):
        ink = INK[op]
        center = _n(x + width / 2)
        halo = f' stroke="{FILL[op]}" stroke-width="3.5" paint-order="stroke"' if rerouted else ""
        weight = ";font-weight:bold" if rerouted else ""
        parts.append(f'<text x="{center}" y="{_n(y + 15)}" style="fill:{ink}{weight}"{halo}>{text}</text>')
    if objection:
        parts.append(
            f'<path d="M{_n(x)} {_n(y)}h{_n(width)}v{ROW}h{_n(-width)}zl{_n(width)} {ROW}m0 -{ROW}l{_n(-width)} {ROW}" '
            f'fill="none" stroke="{WRONG}" stroke-width="2.5"/>'
        )
    return "".join(parts) + "</g>"


def _outage(canvas: Canvas, row: Row, outage: Outage, y: float, right: float) -> None:
    middle = y + ROW / 2
    color = home_color(row.server.pipeline)
    always = outage.start == -math.inf
    start = 8.0 if always else canvas.x(outage.start)
    stop = right if outage.end == math.inf else canvas.x(outage.end)
    text = whereabouts(row, outage)
    if not always:
        canvas.add(f'<g class="outage"><title>{escape(text)}</title>')
        size = f'x="{_n(start)}" y="{_n(y)}" width="{_n(stop - start)}" height="{ROW}"'
        canvas.add(f'<rect {size} fill="#ffffff"/>')
        canvas.add(f'<path d="M{_n(start)} {_n(y)}v{ROW}" stroke="{color}" stroke-width="3"/>')
    canvas.add(f'<path d="M{_n(start)} {_n(middle)}H{_n(stop)}" stroke="{color}" stroke-width="2"/>')
    width = 6.8 * len(text) + 20
    x = max(canvas.left, start) + 14
    if always or x + width < stop:
        canvas.add(
            f'<rect x="{_n(x)}" y="{_n(y + 1.5)}" width="{_n(width)}" height="{ROW - 3}" rx="9" fill="#ffffff" '
            f'stroke="{color}" stroke-width="1.5"/>'
        )
        canvas.add(
            f'<text x="{_n(x + width / 2)}" y="{_n(y + 15)}" class="mid" style="fill:{color};font-weight:bold">'
            f"{escape(text)}</text>"
        )
    if outage.end < math.inf:
        canvas.add(f'<path d="M{_n(stop)} {_n(y)}v{ROW}l8 -{ROW / 2:g}z" fill="{BACK}"/>')
    if not always:
        canvas.add("</g>")


def _recovery(canvas: Canvas, chart: Chart, recovery: RecoveryLine, y: float) -> None:
    x, width = canvas.x(recovery.noticed), max(1.0, (recovery.resumed - recovery.noticed) * canvas.scale)
    canvas.add(
        f'<g class="pause"><title>{recovery.server} {escape(phases(recovery, chart.time_unit))}</title>'
        f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{ROW}" fill="{PAUSE}"/></g>'
    )


def _views(canvas: Canvas, chart: Chart, axis: float, bottom: float) -> None:
    """A line where each view begins, with its number where there is room."""
    free = -math.inf
    for view in chart.views:
        x = canvas.x(view.time)
        line = f'<path d="M{_n(x)} {_n(axis - 9)}V{_n(bottom)}" stroke="#1c2430" stroke-width="1.4"/>'
        canvas.add(f"<g><title>{escape(view.text)}</title>{line}</g>")
        if x > free:
            canvas.text(x + 3, axis - 11, view.name, "name")
            free = x + 8 + 7 * len(view.name)


def _window(canvas: Canvas, start: float, end: float, y: float, text: str) -> None:
    """A dimension line with its length."""
    first, last = canvas.x(start), canvas.x(end)
    canvas.add(
        f'<path d="M{_n(first)} {_n(y - 4)}v8M{_n(last)} {_n(y - 4)}v8M{_n(first)} {_n(y)}H{_n(last)}" class="window"/>'
    )
    width = 6.6 * len(text) + 8
    middle = (first + last) / 2
    canvas.add(f'<rect x="{_n(middle - width / 2)}" y="{_n(y - 7)}" width="{_n(width)}" height="14" fill="#ffffff"/>')
    canvas.text(middle, y + 4, text, "mid name")


def _barrier(canvas: Canvas, chart: Chart, bottom: float) -> float:
    """Dimension lines below everything: compute until the barrier, the optimizer behind it, and both."""
    for iteration in sorted({window.iteration for window in chart.windows}):
        windows = [window for window in chart.windows if window.iteration == iteration]
        start = iteration * chart.period
        barrier = max(window.step for window in windows)
        end = max(window.end for window in windows)
        _window(canvas, start, barrier, bottom + 14, f"all compute: {time_text(barrier - start, chart.time_unit)}")
        if end > barrier:
            _window(canvas, barrier, end, bottom + 14, f"{number(end - barrier)}")
    return bottom + 28


def _boundaries(canvas: Canvas, chart: Chart, places: list[tuple[RowGroup, float]], axis: float, bottom: float) -> None:
    """Where an iteration ends: a line behind a barrier, or steps from stage to stage of a staggered optimizer."""
    for iteration in sorted({window.iteration for window in chart.windows}):
        ends = {window.stage: window.end for window in chart.windows if window.iteration == iteration}
        if chart.barrier or chart.grouping == "pipeline":
            if chart.barrier:
                x = canvas.x(max(ends.values()))
                canvas.line(x, axis + 4, x, bottom, "boundary")
            continue
        path = ""
        for group, y in places:
            time = ends.get(group.rows[0].server.stage)
            if time is not None:
                across = _n(canvas.x(time))
                low = _n(y + GROUP_GAP + PITCH * len(group.rows))
                path += f"H{across}V{low}" if path else f"M{across} {_n(y + 4)}V{low}"
        canvas.add(f'<path d="{path}" class="boundary"/>')


def _legend(canvas: Canvas, chart: Chart, y: float, width: float) -> float:
    x = 12.0
    entries: list[tuple[Op | int, str]] = [
        (op, f"{op.value} {MEANING[op]}" if op.is_compute else MEANING[op]) for op in chart.ops
    ]
    entries += [(home, f"work of pipeline {home}, re-routed") for home in _rerouted_homes(chart)[: len(HOME)]]
    for kind, text in entries:
        length = 21 + 6.4 * len(text) + 16
        if x + length > width:
            x, y = 12.0, y + 20
        size = f'x="{_n(x)}" y="{_n(y - 11)}" width="16" height="14" rx="2"'
        if isinstance(kind, Op):
            canvas.add(f'<rect {size} fill="{FILL[kind]}"/>')
            for side, edge in (("top", y - 11), ("bottom", y + 0.5)):
                if side in EDGES.get(kind, ""):
                    canvas.add(f'<rect x="{_n(x)}" y="{_n(edge)}" width="16" height="2.5" class="edge"/>')
        else:
            canvas.add(f'<rect {size} fill="url(#home{kind})" stroke="{home_color(kind)}" stroke-width="2.5"/>')
        canvas.text(x + 21, y, text)
        x += length
    if any(row.recoveries for row in chart.rows()):
        canvas.add(f'<rect x="{_n(x)}" y="{_n(y - 11)}" width="16" height="14" rx="2" fill="{PAUSE}"/>')
        canvas.text(x + 21, y, "changes views")
        x += 21 + 6.4 * len("changes views") + 16
    if any(row.wasted for row in chart.rows()):
        canvas.add(f'<rect x="{_n(x)}" y="{_n(y - 11)}" width="16" height="14" rx="2" fill="{VOID}" opacity="{PALE}"/>')
        canvas.text(x + 21, y, "pale: void, made again after a failure")
    return y


def _rerouted_homes(chart: Chart) -> list[int]:
    return sorted(
        {span.instruction.home for row in chart.rows() for span in row.spans if row.rerouted(span.instruction)}
    )


def _hatch(home: int) -> str:
    return (
        f'<pattern id="home{home}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="1.6" height="6" fill="{home_color(home)}" fill-opacity=".55"/></pattern>'
    )


def _n(value: float) -> str:
    """A coordinate: two decimals at most, and none that are not needed."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value != int(value) else str(int(value))
