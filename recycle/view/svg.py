"""The SVG view: a still picture for papers and pages. The same chart gives the same bytes."""

from collections.abc import Mapping, Sequence
from html import escape

from recycle.view.chart import Chart
from recycle.view.panel import Panel
from recycle.view.picture import DARK, PAPER, SIZE, Box, Group, Line, Picture, Shape, Text, make_picture
from recycle.view.style import HOME

FONT = "'DejaVu Sans',Verdana,Arial,sans-serif"


def encode(panels: Sequence[Panel]) -> bytes:
    """The picture as a file."""
    return draw([panel.chart for panel in panels], [panel.pace for panel in panels]).encode()


def draw(charts: Sequence[Chart], paces: Sequence[float] = ()) -> str:
    """One chart as an SVG document, or several below each other on one time axis.

    Args:
        charts: what to draw.
        paces: for each chart, how many of its time units are one of the first chart's; one each if it is empty.

    Raises:
        UserError: it would be too wide to be looked at.
    """
    return svg_of(make_picture(charts, paces))


def svg_of(picture: Picture) -> str:
    """A picture as an SVG document."""
    size = {"width": picture.width, "height": picture.height}
    content = [
        "",
        _element("title", {}, escape(picture.title)),
        _element("defs", {}, "".join(map(_hatch, HOME))),
        _element("rect", {**size, "fill": PAPER}),
        *map(_drawn, picture.shapes),
        "",
    ]
    seen = {"viewBox": f"0 0 {picture.width} {picture.height}", "xmlns": "http://www.w3.org/2000/svg"}
    look = {"font-family": FONT, "font-size": SIZE, "fill": DARK}
    return _element("svg", {**seen, **size, **look}, "\n".join(content)) + "\n"


def _drawn(shape: Shape) -> str:
    """A shape as an element; what is as it is without being said is not said."""
    match shape:
        case Group(kind, title, shapes, pale):
            said = _element("title", {}, escape(title)) if title else ""
            return _element("g", {"class": kind, **_unless("opacity", pale, 1)}, said + "".join(map(_drawn, shapes)))
        case Text(x, y, content, anchor, size, color, bold, halo, turned):
            look = {**_unless("text-anchor", anchor, "start"), **_unless("font-size", size, SIZE)}
            look |= {**_unless("fill", color, DARK), **({"font-weight": "bold"} if bold else {})}
            look |= {"stroke": halo, "stroke-width": 3.5, "paint-order": "stroke"} if halo else {}
            look |= {"transform": f"rotate(-90 {_text(x)} {_text(y)})"} if turned else {}
            return _element("text", {"x": x, "y": y, **look}, escape(content))
        case Line(points, color, thick, dashed, filled):
            path = "M" + "L".join(f"{_text(x)} {_text(y)}" for x, y in points)
            line = {"fill": "none", "stroke": color, "stroke-width": thick}
            dashes = {"stroke-dasharray": "5 3"} if dashed else {}
            return _element("path", {"d": path, **({"fill": color} if filled else line), **dashes})
        case Box(x, y, width, height, fill, edge, thick, pale, radius, hatched):
            paint = f"url(#home{HOME.index(edge)})" if hatched else fill or "none"
            around = {"stroke": edge, "stroke-width": thick} if edge else {}
            look = {**_unless("rx", radius, 0), "fill": paint, **around, **_unless("opacity", pale, 1)}
            return _element("rect", {"x": x, "y": y, "width": width, "height": height, **look})


def _hatch(home: str) -> str:
    stripe = _element("rect", {"width": 1.6, "height": 6, "fill": home, "fill-opacity": 0.55})
    tile = {"width": 6, "height": 6, "patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
    return _element("pattern", {"id": f"home{HOME.index(home)}", **tile}, stripe)


def _unless(name: str, value: object, usual: object) -> dict[str, object]:
    return {} if value == usual else {name: value}


def _element(name: str, attributes: Mapping[str, object], content: str = "") -> str:
    start = " ".join([name, *(f'{key}="{_text(value)}"' for key, value in attributes.items())])
    return f"<{start}>{content}</{name}>" if content else f"<{start}/>"


def _text(value: object) -> str:
    """A value; of a number two decimals at most, and none that are not needed."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float | int) else str(value)
