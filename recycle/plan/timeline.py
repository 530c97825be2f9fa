"""The time line: one schema for planned and measured runs, so that every view reads both and they overlay."""

from typing import Literal

import msgspec

from recycle.job import Server
from recycle.plan.instruction import Instruction

LaneName = Literal["compute", "communication"]
InstantKind = Literal["failure", "view change", "optimizer step", "rejoin", "fault", "warning", "end"]


class Span(msgspec.Struct, frozen=True, gc=False):
    """One instruction of one server from its start to its end.

    Attributes:
        server: who executes it.
        lane: ``compute`` keeps the server busy, so its spans never overlap; ``communication`` does not, and several
            transfers may be under way at once.
        instruction: what is executed; its home pipeline tells whose data it is.
        start: in time units from the start of the time line.
        end: likewise.
        iteration: which iteration the instruction belongs to, from 0.
        index: its place in the server's program, from 0; -1 if it is in none.
    """

    server: Server
    lane: LaneName
    instruction: Instruction
    start: float
    end: float
    iteration: int = 0
    index: int = -1


class Instant(msgspec.Struct, frozen=True, gc=False):
    """Something that happens at one time: on one server, or to the whole job where ``server`` is None."""

    kind: InstantKind
    time: float
    server: Server | None
    text: str


class Sample(msgspec.Struct, frozen=True, gc=False):
    """The memory that a server holds for activations from this time on."""

    server: Server
    time: float
    memory: int


class Timeline(msgspec.Struct, frozen=True):
    """What happened, or is planned to happen, when.

    Attributes:
        title: what is shown: a job and its mode, or a run.
        time_unit: what one unit of time is.
        source: whether the times are planned or measured.
        spans: by server, and by start on each server.
        instants: by time.
        samples: by server and time.
        period: time per iteration in the steady state, where it was planned.
    """

    title: str
    time_unit: str
    source: Literal["planned", "measured"]
    spans: tuple[Span, ...]
    instants: tuple[Instant, ...]
    samples: tuple[Sample, ...]
    period: float | None = None

    def last(self, count: int) -> "Timeline":
        """Its last iterations, numbered from 0 and moved to start at 0; who is dead stays known."""
        first = max(0, self.iterations - count)
        replace = msgspec.structs.replace
        spans = tuple(replace(span, iteration=span.iteration - first) for span in self.spans if span.iteration >= first)
        begin = min((span.start for span in spans), default=0)
        return replace(
            self,
            spans=spans,
            instants=tuple(
                replace(each, time=max(each.time, begin))
                for each in self.instants
                if each.time >= begin or each.kind == "failure"
            ),
            samples=tuple(sample for sample in self.samples if sample.time >= begin),
        ).from_zero()

    @property
    def failed(self) -> tuple[Server, ...]:
        """The servers that failed, in order."""
        found = {each.server for each in self.instants if each.kind == "failure" and each.server is not None}
        return tuple(sorted(found))

    @property
    def end(self) -> float:
        """When the last span ends."""
        return max((span.end for span in self.spans), default=0)

    def from_zero(self) -> "Timeline":
        """The same, moved so that its first span starts at 0."""
        origin = min((span.start for span in self.spans), default=0)
        replace = msgspec.structs.replace
        return replace(
            self,
            spans=tuple(replace(span, start=span.start - origin, end=span.end - origin) for span in self.spans),
            instants=tuple(replace(instant, time=instant.time - origin) for instant in self.instants),
            samples=tuple(replace(sample, time=sample.time - origin) for sample in self.samples),
        )

    @property
    def iterations(self) -> int:
        """How many iterations it spans."""
        return max((span.iteration for span in self.spans), default=-1) + 1
