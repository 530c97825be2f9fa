"""A schedule as the views get it: one of those that are drawn together."""

import math
from collections.abc import Mapping, Sequence

import msgspec

from recycle.record.measured import iteration_ends
from recycle.record.speeds import slow_servers
from recycle.record.timeline import Timeline
from recycle.view.chart import Chart, Grouping, make_chart
from recycle.view.compare import Comparison, compare
from recycle.view.copies import copies_lines
from recycle.view.history import summarise, tell
from recycle.view.subject import Subject


class Curve(msgspec.Struct, frozen=True):
    """A figure of a run over its time.

    Attributes:
        name: what is measured.
        unit: what one of it is; empty where it has none.
        zero: whether the value 0 is shown.
        times: by time, in the time line's unit.
        values: one for each time.
        steps: the iteration that each is of, from 0.
    """

    name: str
    unit: str
    zero: bool
    times: tuple[float, ...]
    values: tuple[float, ...]
    steps: tuple[int, ...]


class Story(msgspec.Struct, frozen=True):
    """What is told of a run beside its time line; of a plan there is nothing.

    Attributes:
        curves: its figures over its time.
        events: what happened, in words, each with its time.
        summary: of what happened, a line each.
    """

    curves: tuple[Curve, ...] = ()
    events: tuple[tuple[float, str], ...] = ()
    summary: tuple[str, ...] = ()


def summary_of(subject: Subject) -> tuple[str, ...]:
    """What happened in a run, in a few lines; nothing of a plan."""
    history = subject.history
    if history is None:
        return ()
    slow = map(str, slow_servers(subject.timeline))
    return (*summarise(history, history.servers), *slow, *copies_lines(subject.copies))


def story_of(subject: Subject) -> Story:
    """What a subject knows of a run."""
    history, line = subject.history, subject.timeline
    if history is None:
        return Story()
    events = [(time - line.origin, tell(event, history.servers, history.time_unit)) for time, event in history.timed]
    return Story(
        _curves(subject),
        tuple((max(0.0, time), text) for time, text in events if time >= 0 or line.first == 0),
        summary_of(subject),
    )


def _curves(subject: Subject) -> tuple[Curve, ...]:
    line = subject.timeline
    ends = {step + line.first: time for step, time in iteration_ends(line).items()}
    made = [total for total in subject.totals if total.seconds and total.step in ends]
    if not made:
        return ()
    job = subject.job
    losses = {total.step: total.loss for total in made if math.isfinite(total.loss)}
    rates = {total.step: total.rate(job) for total in made}

    def curve(name: str, unit: str, values: Mapping[int, float], *, zero: bool) -> Curve:
        return Curve(name, unit, zero, tuple(ends[step] for step in values), tuple(values.values()), tuple(values))

    unit = "micro-batches/s" if job else "iterations/s"
    return curve("loss", "", losses, zero=False), curve("throughput", unit, rates, zero=True)


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
        subjects: what to draw.
        grouping: which servers are drawn together.
    """
    panels: list[Panel] = []
    for subject in subjects:
        comparison = compare(panels[0].timeline, subject.timeline) if panels else None
        chart = make_chart(subject, grouping)
        panels.append(Panel(subject.name, chart, subject.timeline, comparison, story_of(subject)))
    return panels
