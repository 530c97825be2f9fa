"""The trace view: Chrome trace JSON, which Perfetto and chrome://tracing open beside a profiler's traces."""

import math
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec

from recycle.plan.dependency import dependencies
from recycle.plan.instruction import Op
from recycle.record.timeline import Span, Timeline
from recycle.view.chart import Chart, Row, steps
from recycle.view.panel import Panel, Story
from recycle.view.style import MEANING
from recycle.wording import microseconds

COMPUTE = 0
ITERATIONS, RECOVERIES = 1, 1001
"""The first lanes of the job's own slices."""
VIEWS = 1_000_000
"""The lane of what a server does on its way into a new view, behind all that transfers need."""

Event = dict[str, Any]


class Part(msgspec.Struct, frozen=True):
    """One of the schedules of a trace.

    Attributes:
        name: put before its processes; empty if it stands alone.
        chart: its rows.
        timeline: its instants and memory.
        scale: microseconds per unit of its time.
        story: of a run.
    """

    name: str
    chart: Chart
    timeline: Timeline
    scale: float
    story: Story

    def at(self, time: float) -> float:
        """When that is, in microseconds."""
        return _microseconds(self._nanoseconds(time))

    def lasts(self, start: float, end: float) -> Event:
        """From when on, and how long: whatever ends when another begins also does so in nanoseconds."""
        begin = self._nanoseconds(start)
        return {"ts": _microseconds(begin), "dur": _microseconds(self._nanoseconds(end) - begin)}

    def is_seen(self, start: float, end: float) -> bool:
        """Whether a slice that lasts so long has a length in nanoseconds."""
        return self._nanoseconds(start) < self._nanoseconds(end)

    def inside(self, start: float, end: float) -> float:
        """Shortly before the end of a slice that lasts, and still on it."""
        return _microseconds(max(self._nanoseconds(start), self._nanoseconds(end) - 1))

    def _nanoseconds(self, time: float) -> int:
        return round(time * self.scale * 1000)


def _microseconds(nanoseconds: int) -> float:
    """Of which a viewer makes the same nanoseconds again, whether it rounds or cuts off."""
    value = nanoseconds / 1000
    return (
        value if int(value * 1000) == nanoseconds else math.nextafter(value, math.inf if nanoseconds > 0 else -math.inf)
    )


def encode(panels: Sequence[Panel]) -> bytes:
    """A trace of one schedule, or of several side by side: a process per server, lanes for compute and transfers."""
    events: list[Event] = []
    scale = microseconds(panels[0].timeline.time_unit)
    process, flows = 0, count(1)
    for panel in panels:
        name = panel.name if len(panels) > 1 else ""
        part, rows = Part(name, panel.chart, panel.timeline, scale / panel.pace, panel.story), list(panel.chart.rows())
        events += _events(part, rows, process, flows)
        process += 1 + len(rows)
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events}) + b"\n"


def lanes(spans: Iterable[Span]) -> Iterator[tuple[int, Span]]:
    """Give every span the first lane that is free when it starts: slices of one lane never overlap."""
    free: list[float] = []
    for span in sorted(spans, key=lambda each: (each.start, each.end)):
        yield _take_lane(free, span.start, span.end), span


def _take_lane(free: list[float], start: float, end: float) -> int:
    """The first lane that is free at a time, from when on it is not until another one.

    Args:
        free: from when on each lane is; a new one is added where none is.
        start: the time.
        end: the other one.
    """
    lane = next((place for place, time in enumerate(free) if time <= start), len(free))
    free[lane : lane + 1] = [end]
    return lane


def _events(part: Part, rows: Sequence[Row], first: int, flows: Iterator[int]) -> Iterator[Event]:
    """The first process is the job, and each row has the next one.

    Args:
        part: the schedule.
        rows: its rows.
        first: the number of the first process.
        flows: numbers that no arrow has.
    """
    prefix = f"{part.name} " if part.name else ""
    yield from _process(first, f"{prefix}{part.chart.title}", first)
    process = {}
    for place, row in enumerate(rows, first + 1):
        process[str(row.server)] = place
        yield from _process(place, f"{prefix}{row.label}{' (dead)' if row.dead else ''}", place)
        yield from _slices(part, row, place)
    yield from _job(part, first)
    yield from _flows(part, rows, first, flows)
    for instant in part.timeline.instants:
        where = process.get(instant.server, first) if instant.server else first
        yield {
            "ph": "i",
            "name": instant.text,
            "cat": instant.kind,
            "ts": part.at(instant.time),
            "pid": where,
            "tid": COMPUTE,
            "s": "p" if instant.server else "g",
        }
    for sample in part.timeline.samples:
        yield {
            "ph": "C",
            "name": "activation memory",
            "ts": part.at(sample.time),
            "pid": process[sample.server],
            "args": {part.chart.memory_unit: sample.memory},
        }


def _job(part: Part, process: int) -> Iterator[Event]:
    """What concerns the whole job: iterations, recoveries, and the figures of a run."""
    iterations: dict[int, list[float]] = {}
    for window in part.chart.windows:
        iterations.setdefault(window.iteration + part.timeline.first + 1, []).extend((window.start, window.end))
    yield from _lengths(part, process, ITERATIONS, "iteration", iterations)
    recoveries: dict[int, list[float]] = {}
    for recovery in part.timeline.recoveries:
        recoveries.setdefault(recovery.epoch, []).extend((recovery.noticed, recovery.resumed))
    yield from _lengths(part, process, RECOVERIES, "recovery into view", recoveries)
    for curve in part.story.curves:
        for time, value in zip(curve.times, curve.values, strict=True):
            figure = {curve.unit or curve.name: value}
            yield {"ph": "C", "name": curve.name, "ts": part.at(time), "pid": process, "args": figure}


def _lengths(part: Part, process: int, lane: int, name: str, times: Mapping[int, Sequence[float]]) -> Iterator[Event]:
    """A slice for each number, from the first of its times to the last; on as many lanes as overlap."""
    free: list[float] = []
    for start, end, number in sorted((min(each), max(each), number) for number, each in times.items()):
        known = len(free)
        place = _take_lane(free, start, end)
        if place == known:
            yield _thread(process, lane + place, name)
        shared = {"ph": "X", "cat": name, "pid": process, "tid": lane + place, "args": {"number": number}}
        yield {"name": f"{name} {number}", **part.lasts(start, end), **shared}


def _process(number: int, name: str, order: int) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": order}}


def _slices(part: Part, row: Row, process: int) -> Iterator[Event]:
    named = {COMPUTE: "compute"}
    yield _thread(process, COMPUTE, named[COMPUTE])
    for place, span in enumerate(row.spans):
        if part.is_seen(span.start, span.end):
            yield _slice(part, row, span, process, COMPUTE, void=place in row.void)
    for lane, span in lanes(each for each in row.transfers if part.is_seen(each.start, each.end)):
        if lane + 1 not in named:
            named[lane + 1] = "communication"
            yield _thread(process, lane + 1, named[lane + 1])
        yield _slice(part, row, span, process, lane + 1)
    for recovery in row.recoveries:
        if VIEWS not in named:
            named[VIEWS] = "views"
            yield _thread(process, VIEWS, named[VIEWS])
        for name, start, end in steps(recovery):
            if part.is_seen(start, end):
                yield {
                    "ph": "X",
                    "name": name,
                    "cat": "recovery",
                    **part.lasts(start, end),
                    "pid": process,
                    "tid": VIEWS,
                    "args": {"view": recovery.epoch, "iteration": recovery.step + 1},
                }


def _thread(process: int, lane: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": process, "tid": lane, "args": {"name": name}}


def _slice(part: Part, row: Row, span: Span, process: int, lane: int, *, void: bool = False) -> Event:
    instruction = span.instruction
    rerouted = row.rerouted(instruction)
    arguments: dict[str, Any] = {
        "instruction": str(instruction),
        "meaning": MEANING[instruction.op],
        "iteration": span.iteration + part.timeline.first + 1,
    }
    if instruction.home >= 0:
        arguments |= {"home": instruction.home, "micro-batch": instruction.micro_batch, "re-routed": rerouted}
    objection = part.chart.wrong.get((row.server, span.index))
    if objection:
        arguments["wrong"] = objection
    if void:
        arguments["void"] = "made again in a later view"
    return {
        "ph": "X",
        "name": instruction.op.value,
        "cat": f"{instruction.op.value}{',re-routed' if rerouted else ''}{',void' if void else ''}",
        **part.lasts(span.start, span.end),
        "pid": process,
        "tid": lane,
        "args": arguments,
    }


def _flows(part: Part, rows: Sequence[Row], first: int, flows: Iterator[int]) -> Iterator[Event]:
    """An arrow for every result that goes to another server."""
    depth = 1 + max((span.instruction.stage for row in rows for span in row.spans), default=0)
    # What an iteration left undone in one view goes to nobody in the next.
    views = part.timeline.views
    done: dict[tuple[int, int, Op, int, int, int], tuple[int, Span]] = {}
    for place, row in enumerate(rows, first + 1):
        for span in row.spans:
            each, view = span.instruction, bisect(views, span.start)
            for phase in each.op.phases:
                done[view, span.iteration, phase, each.stage, each.home, each.micro_batch] = (place, span)
    for place, row in enumerate(rows, first + 1):
        for span in row.spans:
            each, view = span.instruction, bisect(views, span.start)
            for phase in each.op.phases:
                for need in dependencies(phase, each.stage, depth):
                    source = done.get((view, span.iteration, need.phase, need.stage, each.home, each.micro_batch))
                    if source is None or source[0] == place or not part.is_seen(span.start, span.end):
                        continue
                    other, maker = source
                    if not part.is_seen(maker.start, maker.end):
                        continue
                    leaves = part.inside(maker.start, maker.end)
                    shared = {"name": "transfer", "cat": "transfer", "id": next(flows), "tid": COMPUTE}
                    yield {"ph": "s", "ts": leaves, "pid": other, **shared}
                    yield {"ph": "f", "bp": "e", "ts": part.at(span.start), "pid": place, **shared}
