"""The paper view: PNG or PDF through matplotlib, which the ``figures`` extra installs."""

import warnings
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from recycle.errors import UserError
from recycle.view.panel import Panel
from recycle.view.picture import Box, Group, Line, Shape, Text, make_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("png", "pdf")
WIDTH = 1500
"""Pixels of a figure at most, so that its letters can be read on paper."""
WIDE, HIGH, PIXEL = 11.0, 200.0, 1 / 96
"""Inches: of a figure at most, and of a pixel at most."""
ALIGNED = {"start": "left", "middle": "center", "end": "right"}


def encode(panels: Sequence[Panel], target: Path) -> bytes:
    """The picture as a file, in the format that the file's ending says.

    Raises:
        UserError: matplotlib is not installed.
    """
    form = target.suffix.lstrip(".").lower() or FORMATS[0]
    assert form in FORMATS, f"{target} is no file for a figure"
    picture = make_picture([panel.chart for panel in panels], [panel.pace for panel in panels], WIDTH)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("PNG and PDF need matplotlib: pip install matplotlib") from error
    inch = min(WIDE / picture.width, HIGH / picture.height, PIXEL)
    figure = Figure(figsize=(picture.width * inch, picture.height * inch))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, picture.width), ylim=(picture.height, 0))
    axes.set_axis_off()
    _draw(axes, picture.shapes, inch * 72)
    content = BytesIO()
    # Of letters that its font lacks it warns, and draws boxes.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        figure.savefig(content, format=form, dpi=150, metadata={"CreationDate": None} if form == "pdf" else None)
    return content.getvalue()


def _draw(axes: "Axes", shapes: Iterable[Shape], point: float, pale: float = 1.0) -> None:
    """Draw shapes.

    Args:
        axes: where to.
        shapes: what, in pixels.
        point: points per pixel.
        pale: how much of the colours is left.
    """
    from matplotlib.patches import Patch, Polygon, Rectangle
    from matplotlib.patheffects import withStroke

    for shape in shapes:
        patch: Patch | None = None
        match shape:
            case Group():
                _draw(axes, shape.shapes, point, shape.pale)
            case Text(x, y, content, anchor):
                text = axes.text(x, y, content, ha=ALIGNED[anchor], color=shape.color, alpha=pale, parse_math=False)
                # What is painted later is above it, as of all shapes.
                text.set(fontsize=shape.size * point, fontweight="bold" if shape.bold else "normal", zorder=1)
                if shape.halo:
                    text.set_path_effects([withStroke(linewidth=3.5 * point, foreground=shape.halo)])
            case Line(points, color, thick):
                patch = Polygon(points, closed=shape.filled, facecolor=color if shape.filled else "none")
                patch.set(edgecolor=color, linewidth=thick * point, linestyle=(0, (3, 2)) if shape.dashed else "-")
            case Box(x, y, width, height, fill, edge):
                patch = Rectangle((x, y), width, height, facecolor=fill or "none", edgecolor=edge or "none")
                patch.set(linewidth=shape.thick * point if edge else 0, hatch="////" if shape.hatched else None)
                patch.set_alpha(pale * shape.pale)
        if patch is not None:
            axes.add_patch(patch)
