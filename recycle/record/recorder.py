"""The record of a run: when each instruction started and ended, in the schema that planned time lines have."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from recycle.job import Server
from recycle.plan.instruction import Instruction
from recycle.record.timeline import Span

NANOSECONDS = 1000
UNIT = "us"


class Executed(NamedTuple):
    """One instruction's start and end, in nanoseconds of the monotonic clock."""

    iteration: int
    instruction: Instruction
    start: int
    end: int


class Moment(Protocol):
    """A moment of what computes: the one at which it has done all that it was given before."""

    def wait(self) -> None:
        """Wait for it."""


class MomentClock(Protocol):
    """Knows when what computes has done something."""

    def mark(self) -> Any:
        """A mark after all that this thread has started so far. It waits for nothing."""

    def times(self, marks: Sequence[Any]) -> list[int]:
        """When marks were passed, in nanoseconds of the monotonic clock; waits for them."""


class HostMoment(NamedTuple):
    """A moment of a processor: it has done what it was given when that returns.

    Attributes:
        time: in nanoseconds of the monotonic clock, which all processes of a machine share.
    """

    time: int

    def wait(self) -> None:
        """See Moment: it has passed."""


class HostClock:
    """A processor's; a MomentClock."""

    def mark(self) -> HostMoment:
        """See MomentClock."""
        return HostMoment(time.monotonic_ns())

    def times(self, marks: Sequence[HostMoment]) -> list[int]:
        """See MomentClock."""
        return [each.time for each in marks]


class Marked(NamedTuple):
    """An instruction between two marks, which may not have passed yet."""

    iteration: int
    instruction: Instruction
    start: Moment
    end: Moment


class Recorder:
    """A ring buffer of what one server executed; the oldest entries make room for new ones.

    Args:
        server: whose instructions are recorded.
        capacity: how many entries are kept.
        clock: of what computes.
    """

    def __init__(self, server: Server, capacity: int = 100_000, clock: MomentClock = HostClock()) -> None:  # noqa: B008
        self.server = server
        self.iteration = 0
        self._clock = clock
        self._marked: deque[Marked] = deque(maxlen=capacity)
        self._entries: deque[Executed] = deque(maxlen=capacity)
        self._untaken: deque[Executed] = deque(maxlen=capacity)
        self._latest = 0

    def mark(self) -> Moment:
        """A mark after all that was started so far."""
        moment: Moment = self._clock.mark()
        return moment

    def add(self, instruction: Instruction, start: Moment, end: Moment) -> None:
        """Record an instruction. What was recorded inside it, such as its wait for a message, comes off its start."""
        self._marked.append(Marked(self.iteration, instruction, start, end))

    def seconds_since(self, start: Moment) -> float:
        """From a mark, or what was recorded after it, until all is done that was started so far; waits for that."""
        recorded = [self._marked[-1].end] if self._marked else []
        *begun, ended = self._clock.times([start, *recorded, self.mark()])
        return (ended - max(begun)) / 1e9

    @property
    def entries(self) -> Sequence[Executed]:
        """What is in the buffer; waits until it is done."""
        self._settle()
        return self._entries

    def _settle(self) -> None:
        marked = list(self._marked)
        self._marked.clear()
        times = iter(self._clock.times([mark for each in marked for mark in (each.start, each.end)]))
        for each, start, end in zip(marked, times, times, strict=True):
            entry = Executed(each.iteration, each.instruction, max(start, self._latest), end)
            self._entries.append(entry)
            self._untaken.append(entry)
            self._latest = end

    def take_spans(self) -> list[Span]:
        """What was recorded since this was last asked, in microseconds of the same clock.

        The entries stay in the buffer.
        """
        self._settle()
        spans = [
            Span(
                self.server,
                "communication" if entry.instruction.op.is_transfer else "compute",
                entry.instruction,
                entry.start / NANOSECONDS,
                entry.end / NANOSECONDS,
                entry.iteration,
            )
            for entry in self._untaken
        ]
        self._untaken.clear()
        return spans

    def clear(self) -> None:
        """Forget what was recorded so far."""
        self._marked.clear()
        self._entries.clear()
        self._untaken.clear()
