"""Loss curves as SVG: the same bytes for the same figures."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from recycle.view.picture import GRID, Box, Group, Line, Picture, Shape, Text
from recycle.view.style import BACK
from recycle.view.svg import svg_of

Curve = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 48, 48
COLORS = ("#2f6db5", "#c0392b", "#3a8f4d", "#7a56a8")
GONE = "#c0392b"


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
        largest: the largest difference at one of them, relative to the second curve's loss there; infinite where only
            one of the two is finite.
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
    """Loss over steps, a line per curve; a curve of few points is marked at each. What is not finite is left out.

    Args:
        title: what stands above.
        curves: per name, the (step, loss) points by step; the later ones are painted over those before them.
        marks: what happened in the run, as lines across the picture.
        dashed: the names of curves through which those below are seen.
    """
    curves = {name: [point for point in curve if math.isfinite(point[1])] for name, curve in curves.items()}
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

    shapes: list[Shape] = [Text(LEFT, 24, title, size=14, bold=True)]
    for part in range(5):
        step, loss = last * part / 4, low + (high - low) * part / 4
        across, down = place(step, loss)
        shapes.append(Line(((LEFT, down), (WIDTH - RIGHT, down)), GRID))
        shapes.append(Text(LEFT - 8, down + 4, f"{loss:.2f}", "end"))
        shapes.append(Text(across, HEIGHT - BOTTOM + 18, f"{step:g}", "middle"))
    shapes.append(Text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "iteration", "middle"))
    for mark in marks:
        across, _ = place(mark.step, low)
        color = BACK if mark.good else GONE
        # Losses fall, so that there is room at the top.
        shapes.append(Text(across - 3, TOP + 4, mark.text, "end", 10, color, turned=True))
        line = Line(((across, TOP), (across, HEIGHT - BOTTOM)), color, dashed=True)
        shapes.append(Group("mark", mark.text, (line,)))
    for number, (name, curve) in enumerate(curves.items()):
        color = COLORS[number % len(COLORS)]
        places = tuple(place(step, loss) for step, loss in curve)
        shapes.append(Group("curve", name, (Line(places, color, 2, name in dashed),)))
        if len(places) <= 40:
            for (across, down), (step, loss) in zip(places, curve, strict=True):
                dot = Box(across - 3, down - 3, 6, 6, color, round=3)
                shapes.append(Group("point", f"{name}, iteration {step:g}: {loss:.4f}", (dot,)))
        shapes.append(Text(WIDTH - RIGHT - 8, TOP + 14 + 18 * number, name, "end", 12, color, bold=True))
    return svg_of(Picture(title, WIDTH, HEIGHT, tuple(shapes)))


def _relative(loss: float, expected: float) -> float:
    if loss == expected or (math.isnan(loss) and math.isnan(expected)):
        return 0.0
    if not (math.isfinite(loss) and math.isfinite(expected)):
        return math.inf
    return abs(loss - expected) / abs(expected) if expected else math.inf
