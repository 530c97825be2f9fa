"""The picture of README: one iteration around a dead server, to be read where a page is 670 pixels wide."""

from html import escape
from operator import attrgetter

from recycle.plan.instruction import Op
from recycle.record.timeline import Span
from recycle.view.style import FILL, HOME, INK
from recycle.view.subject import Subject

WIDTH, LEFT, TOP = 670, 74, 48
ROW, PITCH, GAP = 17, 19, 9
LEGEND = (
    (FILL[Op.F], "forward (F)"),
    (FILL[Op.I], "input gradient (I)"),
    (FILL[Op.W], "weight gradient (W)"),
    (FILL[Op.B], "I and W in one"),
    (FILL[Op.STEP], "optimizer"),
)
STYLE = (
    "text{font:12px 'DejaVu Sans',Verdana,Arial,sans-serif;fill:#1c2430}.title{font-size:14px;font-weight:bold}"
    ".in{font-size:11px;font-weight:bold;text-anchor:middle}.mid{text-anchor:middle}"
    ".dead{fill:#c1121f;font-weight:bold}"
)


def draw_overview(subject: Subject) -> str:
    """One iteration of a plan: a row per server, and what the legend needs to say.

    Args:
        subject: a plan around one dead server, with its time line.
    """
    assert subject.plan is not None
    (dead,) = subject.plan.dead
    spans = [span for span in subject.timeline.spans if span.lane == "compute" and span.end > span.start]
    scale = (WIDTH - LEFT - 8) / max(span.end for span in spans)
    rows = {
        server: TOP + 18 + number * PITCH + server.stage * GAP
        for number, server in enumerate(sorted(subject.plan.job.servers(), key=attrgetter("stage", "pipeline")))
    }
    bottom = max(rows.values()) + PITCH
    parts = [_text(8, 18, f"One iteration with server {dead} dead: every {subject.plan.period} time slots", "title")]
    parts.append(
        _text(
            8, 36, "Its peers do its micro-batches (red frames). A stage begins again when its optimizer has stepped."
        )
    )
    for slot in range(0, int(max(span.end for span in spans)) + 1, 5):
        x = LEFT + slot * scale
        parts.append(f'<path d="M{x:.1f} {TOP + 14}V{bottom}" stroke="#d8dde3"/>')
        parts.append(_text(x, TOP + 10, str(slot), "mid"))
    for server, y in rows.items():
        parts.append(_text(8, y + 13, str(server), "dead" if server == dead else ""))
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - 8}" height="{ROW}" fill="#eef1f4"/>')
    parts += [_box(span, rows[span.server], scale) for span in spans]
    parts.append(_text(LEFT + 8, rows[dead] + 13, "dead", "dead"))
    return _page(parts, bottom)


def _page(parts: list[str], bottom: int) -> str:
    x = 8.0
    for fill, meaning in LEGEND:
        parts.append(f'<rect x="{x:.0f}" y="{bottom + 8}" width="14" height="14" fill="{fill}"/>')
        parts.append(_text(x + 19, bottom + 20, meaning))
        x += 34 + 6.9 * len(meaning)
    parts.append(
        f'<rect x="9" y="{bottom + 31}" width="13" height="13" fill="none" stroke="{HOME[1]}" stroke-width="2"/>'
    )
    parts.append(
        _text(
            27, bottom + 42, "work of the dead server, with the micro-batch's number; grey: a bubble, the server waits"
        )
    )
    parts.append(
        _text(8, bottom + 62, "W1_2 is pipeline 1, stage 2. The servers of one stage, one in each pipeline, are peers.")
    )
    height = bottom + 72
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}">',
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _box(span: Span, y: int, scale: float) -> str:
    op, x, width = span.instruction.op, LEFT + span.start * scale, (span.end - span.start) * scale - 1
    moved = op.is_compute and span.instruction.home != span.server.pipeline
    frame = f' stroke="{HOME[1]}" stroke-width="2"' if moved else ""
    inset = 1 if moved else 0
    box = (
        f'<rect x="{x + inset:.1f}" y="{y + inset}" width="{width - 2 * inset:.1f}" height="{ROW - 2 * inset}" '
        f'fill="{FILL[op]}"{frame}/>'
    )
    if not moved:
        return box
    number = f'<text x="{x + width / 2:.1f}" y="{y + 13}" class="in" style="fill:{INK[op]}">'
    return f"{box}{number}{span.instruction.micro_batch}</text>"


def _text(x: float, y: float, content: str, classes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y}" class="{classes}">{escape(content)}</text>'
