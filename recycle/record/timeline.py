"""The time line: one schema for planned and measured runs, so that every view reads both and they overlay."""

import math
from typing import Literal, Self

import msgspec

from recycle.job import Server
from recycle.plan.instruction import Instruction

LaneName = Literal["compute", "communication"]
InstantKind = Literal["failure", "view change", "optimizer step", "rejoin", "fault", "warning", "end", "norm"]


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


class Pause(msgspec.Struct, frozen=True):
    """How a server that stays alive gets from a broken view into the next one.

    Attributes:
        server: which.
        epoch: of the new view.
        step: the iteration that it begins with.
        noticed: the server knew that the old view is broken.
        agreed: it had the new view.
        rebuilt: its connections to the others were made.
        restored: it held the state that the iteration starts from.
        resumed: its first instruction began.
        redone: the iteration was finished.
    """

    server: Server
    epoch: int
    step: int
    noticed: float
    agreed: float
    rebuilt: float
    restored: float
    resumed: float
    redone: float

    def moved(self, origin: float) -> Self:
        """The same with times from another origin."""
        times = ("noticed", "agreed", "rebuilt", "restored", "resumed", "redone")
        return msgspec.structs.replace(self, **{name: getattr(self, name) - origin for name in times})


class Outage(msgspec.Struct, frozen=True):
    """A time in which a server is dead.

    Attributes:
        start: when it died.
        end: when it came back; infinite if it did not.
        text: what is said of its death.
    """

    start: float
    end: float
    text: str


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
        pauses: by server and time; times in which a server makes no instruction, because views change.
    """

    title: str
    time_unit: str
    source: Literal["planned", "measured"]
    spans: tuple[Span, ...]
    instants: tuple[Instant, ...]
    samples: tuple[Sample, ...]
    period: float | None = None
    pauses: tuple[Pause, ...] = ()

    def last(self, count: int) -> "Timeline":
        """Its last iterations, numbered from 0 and moved to start at 0; who is dead stays known."""
        first = max(0, self.iterations - count)
        replace = msgspec.structs.replace
        spans = tuple(replace(span, iteration=span.iteration - first) for span in self.spans if span.iteration >= first)
        begin = min((span.start for span in spans), default=0)
        out = {
            server for server, outages in self.outages.items() if any(each.start < begin < each.end for each in outages)
        }
        return replace(
            self,
            spans=spans,
            instants=tuple(
                replace(each, time=max(each.time, begin))
                for each in self.instants
                if each.time >= begin or (each.kind == "failure" and each.server in out)
            ),
            samples=tuple(sample for sample in self.samples if sample.time >= begin),
            pauses=tuple(pause for pause in self.pauses if pause.resumed >= begin),
        ).from_zero()

    @property
    def outages(self) -> dict[Server, tuple[Outage, ...]]:
        """When each server that failed was dead, by time."""
        found: dict[Server, tuple[Outage, ...]] = {}
        for each in self.instants:
            if each.server is None or each.kind not in ("failure", "rejoin"):
                continue
            before = found.get(each.server, ())
            out = bool(before) and before[-1].end == math.inf
            if each.kind == "failure" and not out:
                found[each.server] = (*before, Outage(each.time, math.inf, each.text))
            elif each.kind == "rejoin" and out:
                found[each.server] = (*before[:-1], msgspec.structs.replace(before[-1], end=each.time))
        return found

    @property
    def failed(self) -> tuple[Server, ...]:
        """The servers that are dead at the end, in order."""
        return tuple(sorted(server for server, outages in self.outages.items() if outages[-1].end == math.inf))

    @property
    def views(self) -> tuple[float, ...]:
        """When each view but the first begins; an iteration that one of them interrupts is made again in it."""
        return tuple(each.time for each in self.instants if each.kind == "view change")

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
            pauses=tuple(pause.moved(origin) for pause in self.pauses),
        )

    @property
    def iterations(self) -> int:
        """How many iterations it spans."""
        return max((span.iteration for span in self.spans), default=-1) + 1
