"""The paper view: PNG or PDF through matplotlib, which the ``figures`` extra installs."""

import math
import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from recycle.errors import UserError
from recycle.view.amounts import brief_time
from recycle.view.chart import Chart, fate, share
from recycle.view.panel import Panel
from recycle.view.style import BACK, FILL, INK, MEANING, PAUSE, home_color, label
from recycle.wording import MICROSECONDS, units

FORMATS = ("png", "pdf")
ROW = 0.26
WIDTH = 11.0
LETTER = 0.0048
"""The width of a letter, as a share of the time axis."""


def encode(panels: Sequence[Panel], target: Path) -> bytes:
    """The picture as a file, in the format that the file's ending says.

    Raises:
        UserError: there are two schedules, or matplotlib is not installed.
    """
    form = target.suffix.lstrip(".").lower() or FORMATS[0]
    assert form in FORMATS, f"{target} is no file for a figure"
    if len(panels) > 1:
        raise UserError("--figure draws one schedule; use --svg or --html to draw two")
    return draw_figure(panels[0].chart, form)


def draw_figure(chart: Chart, form: str) -> bytes:
    """The chart as a picture.

    Args:
        chart: what to draw.
        form: one of ``FORMATS``.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("PNG and PDF need matplotlib: pip install matplotlib") from error
    rows = list(chart.rows())
    figure = Figure(figsize=(WIDTH, min(200.0, 1.4 + ROW * (len(rows) + len(chart.groups)))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    ticks = []
    y = 0.0
    for group in chart.groups:
        y += 0.6
        for row in group.rows:
            ticks.append((y, row.label))
            for outage in row.outages:
                color = home_color(row.server.pipeline)
                start, end = max(0.0, outage.start), min(chart.end, outage.end)
                axes.hlines(y, start, end, color=color, linewidth=1.2)
                if outage.start == -math.inf:
                    axes.text(0.5, y, fate(row), color=color, va="center", fontsize=7, backgroundcolor="white")
                else:
                    axes.plot(start, y, "x", color=color, markersize=5)
                if outage.end < math.inf:
                    axes.plot(end, y, ">", color=BACK, markersize=5)
            for recovery in row.recoveries:
                axes.barh(y, recovery.resumed - recovery.noticed, 0.86, left=recovery.noticed, color=PAUSE)
            for span in row.spans:
                if span.end > span.start:
                    _box(axes, chart, row.rerouted(span.instruction), span, y)
            if not row.dead:
                axes.text(chart.end * 1.01, y, share(row.bubble), va="center", fontsize=7)
            y += 1
    for view in chart.views:
        axes.axvline(view.time, color="black", linewidth=0.8)
        axes.text(view.time, 0, view.name, fontsize=6, va="top")
    axes.set_yticks([place for place, _ in ticks], [label for _, label in ticks], fontsize=7)
    axes.set_xlim(0, (chart.end or 1) * 1.06)
    axes.set_ylim(y, 0)
    axes.xaxis.set_major_formatter(lambda value, _: brief_time(value, chart.time_unit))
    unit = "" if chart.time_unit in MICROSECONDS else f" ({units(chart.time_unit)})"
    axes.set_xlabel(f"time{unit}; at the end of each row, its bubble")
    facts = ", ".join(f"{name} {value}" for name, value in chart.facts)
    axes.set_title(
        "\n".join([_plain(chart.title), _plain(facts), *(f"ILLEGAL: {_plain(each)}" for each in chart.problems[:3])]),
        fontsize=9,
    )
    for op in chart.ops:
        axes.bar(0, 0, color=FILL[op], label=f"{op.value}: {MEANING[op]}")
    if chart.ops:
        figure.legend(loc="outside lower center", ncols=5, fontsize=7, frameon=False)
    content = BytesIO()
    # Of letters that its font lacks it warns, and draws boxes.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        figure.savefig(content, format=form, dpi=150, metadata={"CreationDate": None} if form == "pdf" else None)
    return content.getvalue()


def _plain(text: str) -> str:
    """Text without the signs that matplotlib reads as mathematics."""
    return text.replace("$", r"\$")


def _box(axes: Any, chart: Chart, rerouted: bool, span: Any, y: float) -> None:
    instruction = span.instruction
    op = instruction.op
    edge = home_color(instruction.home) if rerouted else "white"
    axes.barh(
        y,
        span.end - span.start,
        0.86,
        left=span.start,
        color=FILL[op],
        edgecolor="red" if (span.server, span.index) in chart.wrong else edge,
        hatch="////" if rerouted else None,
        linewidth=1.2 if rerouted else 0.4,
    )
    text = label(instruction)
    if span.end - span.start >= len(text) * LETTER * chart.end:
        axes.text((span.start + span.end) / 2, y, text, ha="center", va="center", fontsize=6, color=INK[op])
