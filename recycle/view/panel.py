"""A schedule as the views get it: one of those that are drawn together."""

from collections.abc import Sequence

import msgspec

from recycle.record.timeline import Timeline
from recycle.view.chart import Chart, Grouping, make_chart
from recycle.view.compare import Comparison, compare
from recycle.view.subject import Subject


class Curve(msgspec.Struct, frozen=True):
    """A figure of a run over its time.

    Attributes:
        name: what is measured.
        unit: what one of it is; empty where it has none.
        times: by time, in the time line's unit.
        values: one for each time.
        steps: the iteration that each is of, from 0.
        from_zero: whether the value 0 is shown.
    """

    name: str
    unit: str
    times: tuple[float, ...]
    values: tuple[float, ...]
    steps: tuple[int, ...]
    from_zero: bool


class Panel(msgspec.Struct, frozen=True):
    """One of the schedules that are drawn together.

    Attributes:
        name: what to call it beside another one.
        chart: how it is laid out.
        timeline: its instants and its memory.
        comparison: how it differs from the first panel, if it is another one.
        curves: the figures of a run over its time.
        events: what happened in a run, in words, each with its time.
        summary: of what happened in a run, a line each.
    """

    name: str
    chart: Chart
    timeline: Timeline
    comparison: Comparison | None = None
    curves: tuple[Curve, ...] = ()
    events: tuple[tuple[float, str], ...] = ()
    summary: tuple[str, ...] = ()

    @property
    def pace(self) -> float:
        """Time units of this panel per time unit of the first one."""
        return self.comparison.pace if self.comparison else 1.0


def make_panels(subjects: Sequence[Subject], grouping: Grouping) -> list[Panel]:
    """Lay out subjects below each other, each compared with the first.

    Args:
        subjects: what to draw; each has a time line.
        grouping: which servers are drawn together.
    """
    panels: list[Panel] = []
    for subject in subjects:
        line = subject.timeline
        assert line is not None
        comparison = compare(panels[0].timeline, line) if panels else None
        panels.append(Panel(subject.name, make_chart(subject, line, grouping), line, comparison))
    return panels
