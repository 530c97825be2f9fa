"""Loss curves as SVG: standard library only, and the same bytes for the same figures."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree as Xml

Curve = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 48, 48
COLORS = ("#2f6db5", "#c0392b", "#3a8f4d", "#7a56a8")
COME, GONE = "#3a8f4d", "#c0392b"
FONT = "font-family:system-ui,sans-serif;font-size:12px;fill:#333"


class Mark(NamedTuple):
    """Something that happened in a run.

    Attributes:
        step: before which step.
        text: what.
        good: whether it is good news, a server that came back.
    """

    step: float
    text: str
    good: bool


class LossDifference(NamedTuple):
    """How far two curves are apart.

    Attributes:
        steps: how many steps both have.
        largest: the largest difference at one of them, relative to the second curve's loss there.
        step: where that is; the first such.
    """

    steps: int
    largest: float
    step: float


def compare_losses(curve: Curve, reference: Curve) -> LossDifference | None:
    """How far a curve is from another, over the steps that both have; None if there are none."""
    expected = dict(reference)
    apart = [(_relative(loss, expected[step]), step) for step, loss in curve if step in expected]
    if not apart:
        return None
    largest, step = max(apart, key=lambda each: each[0])
    return LossDifference(len(apart), largest, step)


def draw_losses(
    title: str, curves: Mapping[str, Curve], marks: Sequence[Mark] = (), dashed: Collection[str] = ()
) -> str:
    """Loss over steps, a line per curve; a curve of few points is marked at each.

    Args:
        title: what stands above.
        curves: per name, the (step, loss) points by step; the later ones are painted over those before them.
        marks: what happened in the run, as lines across the picture.
        dashed: the names of curves through which those below are seen.
    """
    points = [point for curve in curves.values() for point in curve]
    steps = [step for step, _ in points] or [0.0, 1.0]
    losses = [loss for _, loss in points] or [0.0, 1.0]
    last = max(max(steps), 1)
    low, high = min(losses), max(losses)
    margin = (high - low) * 0.05 or 0.5
    low, high = low - margin, high + margin

    def place(step: float, loss: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * step / last
        down = TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)
        return round(across, 2), round(down, 2)

    picture = Xml.Element(
        "svg",
        {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {WIDTH} {HEIGHT}", "width": str(WIDTH)},
    )
    Xml.SubElement(picture, "rect", {"width": str(WIDTH), "height": str(HEIGHT), "fill": "white"})
    _text(picture, LEFT, 24, title, "font-weight:600;font-size:14px")
    for part in range(5):
        loss = low + (high - low) * part / 4
        _, down = place(0, loss)
        line = {"x1": str(LEFT), "x2": str(WIDTH - RIGHT), "y1": str(down), "y2": str(down), "stroke": "#ddd"}
        Xml.SubElement(picture, "line", line)
        _text(picture, LEFT - 8, down + 4, f"{loss:.2f}", "text-anchor:end")
        across, _ = place(last * part / 4, low)
        _text(picture, across, HEIGHT - BOTTOM + 18, f"{last * part / 4:g}", "text-anchor:middle")
    _text(picture, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "iteration", "text-anchor:middle")
    for mark in marks:
        across, _ = place(mark.step, low)
        color = COME if mark.good else GONE
        # Losses fall, so that there is room at the top.
        style = f"fill:{color};font-size:10px;text-anchor:end"
        _text(picture, across - 3, TOP + 4, mark.text, style, f"rotate(-90 {across - 3:g} {TOP + 4})")
        line = {"x1": str(across), "x2": str(across), "y1": str(TOP), "y2": str(HEIGHT - BOTTOM), "stroke": color}
        Xml.SubElement(picture, "line", line | {"class": "mark", "stroke-dasharray": "2 3"})
    for number, (name, curve) in enumerate(curves.items()):
        color = COLORS[number % len(COLORS)]
        places = [place(step, loss) for step, loss in curve]
        path = " ".join(f"{across},{down}" for across, down in places)
        line = {"points": path, "fill": "none", "stroke": color, "stroke-width": "2"}
        Xml.SubElement(picture, "polyline", line | ({"stroke-dasharray": "6 6"} if name in dashed else {}))
        if len(places) <= 40:
            for (across, down), (step, loss) in zip(places, curve, strict=True):
                circle = {"cx": str(across), "cy": str(down), "r": "3", "fill": color}
                dot = Xml.SubElement(picture, "circle", circle)
                Xml.SubElement(dot, "title").text = f"{name}, iteration {step:g}: {loss:.4f}"
        _text(picture, WIDTH - RIGHT - 8, TOP + 14 + 18 * number, name, f"text-anchor:end;fill:{color};font-weight:600")
    return Xml.tostring(picture, encoding="unicode") + "\n"


def _relative(loss: float, expected: float) -> float:
    if loss == expected:
        return 0.0
    return abs(loss - expected) / abs(expected) if expected else math.inf


def _text(picture: Xml.Element, across: float, down: float, text: str, style: str, transform: str = "") -> None:
    where = {"x": f"{across:g}", "y": f"{down:g}", "style": f"{FONT};{style}"}
    Xml.SubElement(picture, "text", where | ({"transform": transform} if transform else {})).text = text
