"""A schedule as the views get it: one of those that are drawn together."""

from collections.abc import Sequence

import msgspec

from recycle.record.timeline import Timeline
from recycle.view.chart import Chart, Grouping, make_chart
from recycle.view.compare import Comparison, compare
from recycle.view.story import Story, story_of
from recycle.view.subject import Subject


class Panel(msgspec.Struct, frozen=True):
    """One of the schedules that are drawn together.

    Attributes:
        name: what to call it beside another one.
        chart: how it is laid out.
        timeline: its instants and its memory.
        comparison: how it differs from the first panel, if it is another one.
        story: of a run.
    """

    name: str
    chart: Chart
    timeline: Timeline
    comparison: Comparison | None = None
    story: Story = Story()

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
        panels.append(
            Panel(subject.name, make_chart(subject, line, grouping), line, comparison, story_of(subject, line))
        )
    return panels
