"""The trace view: Chrome trace JSON, which Perfetto and chrome://tracing open beside a profiler's traces."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from recycle.record.timeline import Span
from recycle.view.chart import Row, steps
from recycle.view.panel import Panel
from recycle.view.style import MEANING
from recycle.wording import microseconds

COMPUTE, COMMUNICATION, VIEWS = 0, 1, 1_000_000
"""The first lanes of a server's slices; transfers take as many as are under way at once."""
ITERATIONS, RECOVERIES = 1, 1001
"""The first lanes of the job's own slices."""

Event = dict[str, Any]


class Slice(NamedTuple):
    """Something that lasts.

    Attributes:
        start: in microseconds.
        end: likewise.
        name: of what Perfetto sums.
        kind: by which it can be searched for.
        args: what is said of it.
    """

    start: int
    end: int
    name: str
    kind: str
    args: Mapping[str, Any]


def encode(panels: Sequence[Panel]) -> bytes:
    """A trace of one schedule, or of several side by side: a process per server, lanes for compute and transfers."""
    events: list[Event] = []
    scale = microseconds(panels[0].timeline.time_unit)
    process = 0
    for panel in panels:
        prefix = f"{panel.name} " if len(panels) > 1 else ""
        events += _Writer(panel, scale / panel.pace).events(process, prefix)
        process += 1 + len(list(panel.chart.rows()))
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events}) + b"\n"


class _Writer:
    """Makes the events of one schedule.

    Args:
        panel: the schedule.
        scale: microseconds per unit of its time.
    """

    def __init__(self, panel: Panel, scale: float) -> None:
        self._panel, self._chart, self._line = panel, panel.chart, panel.timeline
        self._scale = scale

    def events(self, first: int, prefix: str) -> Iterator[Event]:
        """The first process is the job, and each row has the next one.

        Args:
            first: the number of the first process.
            prefix: of the names of processes.
        """
        yield from _process(first, f"{prefix}{self._chart.title}")
        yield from self._job(first)
        process = {}
        for place, row in enumerate(self._chart.rows(), first + 1):
            process[str(row.server)] = place
            yield from _process(place, f"{prefix}{row.label}{' (dead)' if row.dead else ''}")
            compute = (self._work(row, span, void=place in row.void) for place, span in enumerate(row.spans))
            yield from _lanes(place, COMPUTE, "compute", compute)
            transfers = (self._work(row, span) for span in row.transfers)
            yield from _lanes(place, COMMUNICATION, "communication", transfers)
            yield from _lanes(place, VIEWS, "views", self._recoveries(row))
        for instant in self._line.instants:
            where = process.get(instant.server, first) if instant.server else first
            at = {"ts": self._at(instant.time), "pid": where, "tid": COMPUTE}
            yield {"ph": "i", "name": instant.text, "cat": instant.kind, **at, "s": "p" if instant.server else "g"}
        for sample in self._line.samples:
            held = {self._chart.memory_unit: sample.memory}
            yield self._figure("activation memory", sample.time, process[sample.server], held)

    def _job(self, process: int) -> Iterator[Event]:
        """What concerns the whole job: iterations, recoveries, and the figures of a run."""
        windows = [(each.iteration + self._line.first + 1, each.start, each.end) for each in self._chart.windows]
        yield from _lanes(process, ITERATIONS, "iteration", self._numbered("iteration", windows))
        recoveries = [(each.epoch, each.noticed, each.resumed) for each in self._line.recoveries]
        yield from _lanes(process, RECOVERIES, "recovery", self._numbered("recovery into view", recoveries))
        for curve in self._panel.story.curves:
            for time, value in zip(curve.times, curve.values, strict=True):
                yield self._figure(curve.name, time, process, {curve.unit or curve.name: value})

    def _numbered(self, name: str, times: Iterable[tuple[int, float, float]]) -> Iterator[Slice]:
        """A slice for each number, from the first of its starts to the last of its ends."""
        found: dict[int, tuple[float, float]] = {}
        for number, start, end in times:
            first, last = found.get(number, (start, end))
            found[number] = min(first, start), max(last, end)
        for number, (start, end) in found.items():
            yield Slice(self._at(start), self._at(end), f"{name} {number}", name, {"number": number})

    def _work(self, row: Row, span: Span, *, void: bool = False) -> Slice:
        instruction, rerouted = span.instruction, row.rerouted(span.instruction)
        args: dict[str, Any] = {
            "instruction": str(instruction),
            "meaning": MEANING[instruction.op],
            "iteration": span.iteration + self._line.first + 1,
        }
        if instruction.home >= 0:
            args |= {"home": instruction.home, "micro-batch": instruction.micro_batch, "re-routed": rerouted}
        if void:
            args["void"] = "made again in a later view"
        name = instruction.op.value
        kind = f"{name}{',re-routed' if rerouted else ''}{',void' if void else ''}"
        return Slice(self._at(span.start), self._at(span.end), name, kind, args)

    def _recoveries(self, row: Row) -> Iterator[Slice]:
        for recovery in row.recoveries:
            args = {"view": recovery.epoch, "iteration": recovery.step + 1}
            for name, start, end in steps(recovery):
                yield Slice(self._at(start), self._at(end), name, "recovery", args)

    def _figure(self, name: str, time: float, process: int, values: Mapping[str, float]) -> Event:
        return {"ph": "C", "name": name, "ts": self._at(time), "pid": process, "args": values}

    def _at(self, time: float) -> int:
        """In whole microseconds, so that what ends when another begins does so for every viewer."""
        return round(time * self._scale)


def _process(number: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": number}}


def _lanes(process: int, first: int, name: str, slices: Iterable[Slice]) -> Iterator[Event]:
    """Slices, on as many lanes as overlap; what has no length is left out."""
    free: list[int] = []
    for each in sorted(slices, key=lambda each: each[:2]):
        if each.start == each.end:
            continue
        lane = next((place for place, time in enumerate(free) if time <= each.start), len(free))
        if lane == len(free):
            yield {"ph": "M", "name": "thread_name", "pid": process, "tid": first + lane, "args": {"name": name}}
        free[lane : lane + 1] = [each.end]
        where = {"ts": each.start, "dur": each.end - each.start, "pid": process, "tid": first + lane}
        yield {"ph": "X", "name": each.name, "cat": each.kind, **where, "args": each.args}
