"""The HTML view: one file that opens from disk, with the schedule as columns of numbers and a canvas that draws it.

The page's own files lie in ``page/``: ``model.js`` reads the columns and knows who waits for whom, ``scene.js`` knows
what is where on the canvas, ``paint.js`` draws it with ``boxes.js``, ``bands.js``, ``lanes.js``, ``marks.js`` and
``margins.js``, ``critical.js`` knows why things begin when they do, ``head.js``, ``legend.js`` and ``tip.js`` say the
rest in words, and ``main.js`` answers keys and pointer. ``address.js`` keeps the view in the page's address, and
``pictures.js`` makes files of it. They are modules, which stand in one script of the page one after the other.
"""

import base64
import re
import sys
from array import array
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any, Literal

import msgspec

from recycle.plan.dependency import dependencies
from recycle.plan.instruction import Op
from recycle.record.recording import SampleLine
from recycle.record.timeline import Span
from recycle.view.amounts import brief_time, held_text, memory_scale
from recycle.view.chart import Chart, Row, phases, share, whereabouts
from recycle.view.panel import Panel
from recycle.view.style import EDGES, FILL, HOME, INK, MEANING
from recycle.wording import BYTES

PAGE = resources.files("recycle.view") / "page"
MODULES = (
    *("address", "theme", "model", "times", "search", "svgpen", "critical", "head", "scene", "legend", "live", "tip"),
    *("bands", "boxes", "lanes", "moves", "marks", "margins", "paint", "pictures", "main"),
)
"""The modules of the page's script, each behind those that it imports from; no two have a name in common."""
LINKS = re.compile(r"^import [^;]*;\n|^export ", re.MULTILINE)
"""What modules say of each other, which have no need of it in one script."""

CHANGES = ("", "new", "moved", "reordered")
PHASES = (Op.F, Op.I, Op.W)
OPS = tuple(Op)

Live = Literal["", "run", "plans"]


def encode(panels: Sequence[Panel]) -> bytes:
    """The page as a file."""
    return page(panels).encode()


def page(panels: Sequence[Panel], live: Live = "") -> str:
    """A page with one schedule, or with several on one time axis. The same panels give the same text.

    Args:
        panels: what it shows at first.
        live: what it asks its server for, if it is served: how a ``run`` goes on, or other ``plans``.
    """
    # A name from a file must end neither the script element nor begin a comment in it.
    document = document_of(panels) | {"live": live}
    data = msgspec.json.encode(document).decode().replace("<", "\\u003c")
    style, title = (PAGE / "page.css").read_text(), escape(panels[0].chart.title)
    template = Template((PAGE / "page.html").read_text())
    return template.substitute(title=title, style=style, data=data, script=script())


def document_of(panels: Sequence[Panel]) -> dict[str, Any]:
    """What the page's script draws."""
    first = panels[0].chart
    return {
        "unit": first.time_unit,
        "grouping": first.grouping,
        "homes": HOME,
        "ops": [
            {
                "name": op.value,
                "meaning": MEANING[op],
                "fill": FILL[op],
                "ink": INK[op],
                "edges": EDGES.get(op, ""),
                "phases": [PHASES.index(phase) for phase in op.phases],
                "update": op.is_update,
            }
            for op in OPS
        ],
        "changes": CHANGES,
        "panels": [_panel(panel) for panel in panels],
    }


def script() -> str:
    """The page's script."""
    modules = "".join((PAGE / f"{name}.js").read_text() for name in MODULES)
    return "(() => {\n'use strict';\n" + LINKS.sub("", modules) + "})();"


def _panel(panel: Panel) -> dict[str, Any]:
    chart = panel.chart
    rows = list(chart.rows())
    spans = [span for row in rows for span in row.spans]
    depth = 1 + max((stage for row in rows for stage in (row.server.stage, *map(_chunk, row.spans))), default=0)
    width = 1 + max((span.instruction.micro_batch for span in spans), default=0)
    homes = 1 + max((max(span.instruction.home, span.server.pipeline) for span in spans), default=0)
    samples: dict[str, list[SampleLine]] = {}
    for sample in panel.timeline.samples:
        samples.setdefault(sample.server, []).append(sample)
    held = [samples.get(str(row.server), []) for row in rows]
    changes = panel.comparison.changes if panel.comparison else {}
    return {
        "name": panel.name,
        "title": chart.title,
        "facts": chart.facts,
        "pace": panel.pace,
        "end": chart.end,
        "barrier": chart.barrier,
        "timeUnit": chart.time_unit,
        "memoryUnit": chart.memory_unit,
        "memoryScale": _memory_scale(rows, chart.memory_unit),
        "period": chart.period,
        "curves": panel.story.curves,
        "events": panel.story.events,
        "summary": panel.story.summary,
        "depth": depth,
        "width": width,
        "homes": homes,
        "iterations": panel.timeline.iterations,
        "first": chart.first,
        "waits": [
            [[[PHASES.index(need.phase), need.stage] for need in dependencies(phase, stage, depth)] for phase in PHASES]
            for stage in range(depth)
        ],
        "windows": [(each.stage, each.iteration, each.start, each.end, chart.caption(each)) for each in chart.windows],
        "views": [(each.time, each.name, each.text) for each in chart.views],
        "rows": [_row(row, len(mine), chart) for row, mine in zip(rows, held, strict=True)],
        "boxes": _columns(spans),
        "void": _base64("B", [place in row.void for row in rows for place in range(len(row.spans))])
        if any(row.void for row in rows)
        else "",
        "changes": _base64(
            "B",
            [CHANGES.index(changes.get((row.server, place), "")) for row in rows for place in range(len(row.spans))],
        )
        if panel.comparison
        else "",
        "transfers": _columns([span for row in rows for span in row.transfers]),
        "samples": {
            "time": _times([sample.time for each in held for sample in each]),
            "memory": _base64("d", [sample.memory for each in held for sample in each]),
        },
    }


def _memory_scale(rows: Sequence[Row], unit: str) -> tuple[str, float]:
    """How an amount of memory is said: the text behind a number, and of how many of the unit that number is."""
    if unit not in BYTES:
        return "", 1.0
    name, size = memory_scale(max((max(row.limit or 0, row.peak or 0) for row in rows), default=0), unit)
    return f" {name}", size


def _row(row: Row, samples: int, chart: Chart) -> dict[str, Any]:
    unit = chart.time_unit
    return {
        "pipeline": row.server.pipeline,
        "stage": row.server.stage,
        "home": row.pipeline,
        "label": row.label,
        "dead": row.dead,
        # Infinite times, from the start or to the end, are null in JSON.
        "outages": [(each.start, each.end, whereabouts(row, each)) for each in row.outages],
        "pauses": [(each.noticed, each.resumed, phases(each, unit)) for each in row.recoveries],
        "busy": brief_time(row.busy, unit),
        "bubble": "" if row.dead else share(round(row.bubble, 3)),
        "memory": held_text(row.peak, row.limit, chart.memory_unit),
        "peak": row.peak,
        "limit": row.limit,
        "unrecorded": row.unrecorded,
        "boxes": len(row.spans),
        "transfers": len(row.transfers),
        "samples": samples,
    }


def _chunk(span: Span) -> int:
    return span.instruction.stage


def _is_placed(span: Span) -> bool:
    return span.instruction.stage != span.server.stage


def _columns(spans: Sequence[Span]) -> dict[str, Any]:
    code = {op: place for place, op in enumerate(OPS)}
    return {
        "op": _base64("B", [code[span.instruction.op] for span in spans]),
        "home": _base64("i", [span.instruction.home for span in spans]),
        "microBatch": _base64("i", [span.instruction.micro_batch for span in spans]),
        "chunk": _base64("i", [_chunk(span) for span in spans]) if any(map(_is_placed, spans)) else "",
        "iteration": _base64("i", [span.iteration for span in spans]) if any(span.iteration for span in spans) else "",
        "start": _times([span.start for span in spans]),
        "end": _times([span.end for span in spans]),
    }


def _times(values: Sequence[float]) -> dict[str, str]:
    try:
        return {"type": "i", "data": _base64("i", values)}
    except (TypeError, OverflowError):
        return {"type": "d", "data": _base64("d", values)}


def _base64(code: str, values: Sequence[float]) -> str:
    """Numbers as base64 of their little-endian form."""
    column = array(code, values)
    if sys.byteorder == "big":
        column.byteswap()
    return base64.b64encode(column.tobytes()).decode()
