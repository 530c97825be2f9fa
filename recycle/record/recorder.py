"""The record of a run: when each instruction started and ended, in the schema that planned time lines have."""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from recycle.job import Server
from recycle.plan.instruction import Instruction
from recycle.record.timeline import Span, Timeline

NANOSECONDS = 1000
UNIT = "us"


class Executed(NamedTuple):
    """One instruction's start and end, in nanoseconds of the monotonic clock."""

    iteration: int
    instruction: Instruction
    start: int
    end: int


class Recorder:
    """A ring buffer of what one server executed; the oldest entries make room for new ones.

    Args:
        server: whose instructions are recorded.
        capacity: how many entries are kept.
    """

    def __init__(self, server: Server, capacity: int = 100_000) -> None:
        self.server = server
        self.iteration = 0
        self.entries: deque[Executed] = deque(maxlen=capacity)
        self._latest = 0

    @staticmethod
    def now() -> int:
        """The clock that all processes of a machine share, in nanoseconds."""
        return time.monotonic_ns()

    def add(self, instruction: Instruction, start: int, end: int) -> None:
        """Record an instruction. What was recorded inside it, such as its wait for a message, comes off its start."""
        self.entries.append(Executed(self.iteration, instruction, max(start, self._latest), end))
        self._latest = end

    def spans(self, origin: int) -> list[Span]:
        """What is in the buffer, in microseconds from an origin in nanoseconds of the same clock."""
        return [
            Span(
                self.server,
                "communication" if entry.instruction.op.is_transfer else "compute",
                entry.instruction,
                (entry.start - origin) / NANOSECONDS,
                (entry.end - origin) / NANOSECONDS,
                entry.iteration,
            )
            for entry in self.entries
        ]

    def clear(self) -> None:
        """Forget what was recorded so far."""
        self.entries.clear()


def measured_timeline(title: str, lanes: Iterable[Sequence[Span]]) -> Timeline:
    """One time line from the spans of all servers; it starts with the first of them."""
    spans = sorted((span for lane in lanes for span in lane), key=lambda span: (span.server, span.start))
    return Timeline(title, UNIT, "measured", tuple(spans), (), ()).from_zero()
