"""The time line: one schema for planned and measured runs, so that every view reads both and they overlay."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Literal, Self

import msgspec

from recycle.errors import PlanFileError
from recycle.job import Server
from recycle.plan.instruction import Instruction
from recycle.record.recording import InstantLine, LaneName, RecoveryLine, SampleLine, SpanLine, moved


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

    @classmethod
    def parse(cls, line: SpanLine) -> Self:
        """Read the text form.

        Raises:
            JobError: what is written as its server is none.
            PlanFileError: what is written as its instruction is none, or it ends before its start.
        """
        if not line.start <= line.end:
            raise PlanFileError(f"the span ends at {line.end}, before its start at {line.start} - at `$.end`")
        server, instruction = _server(line.server), _instruction(line.instruction)
        return cls(server, line.lane, instruction, line.start, line.end, line.iteration, line.index)

    def line(self) -> SpanLine:
        """The text form."""
        return SpanLine(
            str(self.server), self.lane, str(self.instruction), self.start, self.end, self.iteration, self.index
        )


# A recording has the same few names again and again.
_server = lru_cache(1 << 12)(Server.parse)
_instruction = lru_cache(1 << 16)(Instruction.parse)


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
        recoveries: by server and time; a server executes no instruction while it is on its way into a new view.
        origin: what its time 0 is on the clock of the recording.
        first: which iteration of the recording its iteration 0 is.
    """

    title: str
    time_unit: str
    source: Literal["planned", "measured"]
    spans: tuple[Span, ...]
    instants: tuple[InstantLine, ...]
    samples: tuple[SampleLine, ...]
    period: float | None = None
    recoveries: tuple[RecoveryLine, ...] = ()
    origin: float = 0.0
    first: int = 0

    def last(self, count: int) -> "Timeline":
        """Its last iterations, numbered from 0 and moved to start at 0; dead servers stay known.

        They are counted without what was given up. Of that, what was begun meanwhile is in it.
        """
        void = self.void
        made = [span for span in self.spans if not void.has(span)]
        newest = max((span.iteration for span in made), default=-1)
        first = max(0, newest + 1 - count)
        # A run that went back to a checkpoint may have begun the same iterations long before.
        since = min((span.start for span in made if span.iteration == first - 1), default=-math.inf)
        replace = msgspec.structs.replace
        spans = tuple(
            replace(span, iteration=span.iteration - first)
            for span in self.spans
            if first <= span.iteration <= newest + 1 and span.start >= since
        )
        begin = min((span.start for span in spans), default=0)
        out = {
            str(server)
            for server, outages in self.outages.items()
            if any(each.start < begin < each.end for each in outages)
        }
        return replace(
            self,
            spans=spans,
            instants=tuple(
                replace(
                    each,
                    time=max(each.time, begin),
                    iteration=None if each.iteration is None else each.iteration - first,
                )
                for each in self.instants
                if each.time >= begin or (each.kind == "failure" and each.server in out)
            ),
            samples=tuple(sample for sample in self.samples if sample.time >= begin),
            recoveries=tuple(recovery for recovery in self.recoveries if recovery.resumed >= begin),
            first=self.first + first,
        ).from_zero()

    @property
    def outages(self) -> dict[Server, tuple[Outage, ...]]:
        """When each server that failed was dead, by time."""
        found: dict[Server, tuple[Outage, ...]] = {}
        for each in self.instants:
            if not each.server or each.kind not in ("failure", "rejoin"):
                continue
            server = Server.parse(each.server)
            before = found.get(server, ())
            out = bool(before) and before[-1].end == math.inf
            if each.kind == "failure" and not out:
                found[server] = (*before, Outage(each.time, math.inf, each.text))
            elif each.kind == "rejoin" and out:
                found[server] = (*before[:-1], msgspec.structs.replace(before[-1], end=each.time))
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
    def void(self) -> "VoidWork":
        """Tells what was computed in vain."""
        return VoidWork(self.instants)

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
            recoveries=tuple(moved(recovery, origin) for recovery in self.recoveries),
            origin=self.origin + origin,
        )

    @property
    def iterations(self) -> int:
        """How many iterations it spans."""
        return max((span.iteration for span in self.spans), default=-1) + 1


class VoidWork:
    """Tells which spans are of iterations that were given up, and made again in a later view.

    Args:
        instants: by time; those of new views say with which iterations these begin.
    """

    def __init__(self, instants: Sequence[InstantLine]) -> None:
        starts = [(each.time, each.iteration) for each in instants if each.iteration is not None]
        self._times = [time for time, _ in starts]
        # For each view, the earliest iteration that it or a later one begins with.
        self._earliest = [*accumulate((iteration for _, iteration in reversed(starts)), min)][::-1]

    def has(self, span: Span) -> bool:
        """Whether a span was in vain."""
        later = bisect_right(self._times, span.start)
        return later < len(self._earliest) and span.iteration >= self._earliest[later]
