"""What failures and returns cost a run: work that was made again, pauses, and slower iterations."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from statistics import median

import msgspec

from recycle.record.recording import AbandonedLine, IterationLine, ViewLine

MOST = 1000
"""Iterations from which it is taken how long one takes in a view: its newest."""


class Cost(msgspec.Struct, frozen=True):
    """What changes of views cost; lengths in the run's time unit.

    Attributes:
        lost: of work that was made again: iterations that were finished, and what was done of the one in flight.
        recovery: the pauses, in which no server worked: see ``ViewRecovery``.
        slower: by how much the iterations since then took longer than before the first change; None if it is not known
            how long they took before.
    """

    lost: float = 0.0
    recovery: float = 0.0
    slower: float | None = 0.0

    @property
    def change(self) -> float:
        """Of the change itself: what is known when the iteration has been made again."""
        return self.lost + self.recovery

    @property
    def whole(self) -> float:
        """All of it, as far as it is known."""
        return self.change + (self.slower or 0.0)

    def __add__(self, other: "Cost") -> "Cost":
        slower = None if self.slower is None or other.slower is None else self.slower + other.slower
        return Cost(self.lost + other.lost, self.recovery + other.recovery, slower)


class IterationTimes:
    """How long iterations took in each view, and when those in flight began that a change of views ended.

    Servers may begin an iteration while others are still at the one before it. So what it took is counted from the end
    of that on the slowest server. What a server took itself counts if that is less: something else came between.

    Batches may grow. Only iterations of the largest batch so far are compared with each other.
    """

    def __init__(self) -> None:
        # Of the slowest server, by view and iteration.
        self._seconds: dict[int, dict[int, float]] = {}
        self._ends: dict[int, dict[int, float]] = {}
        # The first and the last iteration of each view: a long run has too many to look for them at each line.
        self._reach: dict[int, tuple[int, int]] = {}
        self._begun: dict[int, tuple[int, float]] = {}
        # Micro-batches, by iteration.
        self._sizes: dict[int, int] = {}
        self._largest = 0

    def add(self, line: IterationLine | AbandonedLine) -> None:
        """Take in what a server reports."""
        if isinstance(line, AbandonedLine):
            step, start = self._begun.get(line.epoch, (line.step, line.start))
            self._begun[line.epoch] = (max(step, line.step), min(start, line.start))
        else:
            made = self._seconds.setdefault(line.epoch, {})
            made[line.step] = max(line.seconds, made.get(line.step, 0.0))
            self._sizes[line.step] = max(line.micro_batches, self._sizes.get(line.step, 0))
            self._largest = max(self._largest, line.micro_batches)
            first, last = self._reach.get(line.epoch, (line.step, line.step))
            self._reach[line.epoch] = min(first, line.step), max(last, line.step)
            if line.end is not None:
                ends = self._ends.setdefault(line.epoch, {})
                ends[line.step] = max(line.end, ends.get(line.step, line.end))

    def furthest(self, views: Iterable[ViewLine]) -> int:
        """The last iteration that was made in some views, and not given up in a later one of them; -1 for none.

        Args:
            views: by epoch.
        """
        reached = -1
        for view in views:
            _, last = self._reach.get(view.epoch, (0, -1))
            reached = max(min(reached, view.step - 1), last)
        return reached

    def ended(self, before: int) -> float:
        """When the last iteration that was finished before a view had ended on all servers; long ago if there is none.

        Args:
            before: the view's epoch.
        """
        latest = max((epoch for epoch, ends in self._ends.items() if epoch < before), default=None)
        return -math.inf if latest is None else max(self._ends[latest].values())

    def kept(self, view: ViewLine, later: Sequence[ViewLine], second: float) -> Mapping[int, float]:
        """How many seconds each iteration took that was made in a view, and not made again in a later one.

        Args:
            view: which.
            later: the views after it.
            second: what that is in the run's time unit.
        """
        return dict(self._kept(view, self._seconds.get(view.epoch, {}), later, second))

    def usual(self, view: ViewLine, later: Sequence[ViewLine], second: float) -> float | None:
        """How many seconds an iteration takes in a view, in the median of its newest; None where that is not known.

        The first one in a view is left out: connections are made in it, and memory is taken.

        Args:
            view: which.
            later: the views after it.
            second: what that is in the run's time unit.
        """
        made = self._seconds.get(view.epoch, {})
        first, last = self._reach.get(view.epoch, (0, 0))
        # A recording may lack some, or lie.
        newest = range(last, first, -1) if last - first < len(made) else sorted(made, reverse=True)[:-1]
        found = [
            seconds for step, seconds in islice(self._kept(view, newest, later, second), MOST) if self.is_compared(step)
        ]
        return median(found) if found else None

    def is_compared(self, step: int) -> bool:
        """Whether an iteration has the largest batch so far."""
        return self._sizes[step] == self._largest

    def remade(self, view: ViewLine, before: Sequence[ViewLine], second: float) -> float:
        """How many seconds those iterations took that were finished, and are made again in a view.

        Args:
            view: which.
            before: the views before it, by epoch.
            second: what that is in the run's time unit.
        """
        return sum(
            seconds
            for place, each in enumerate(before)
            # Most of a long run's views ended before it, and have thousands of iterations.
            if self._reach.get(each.epoch, (0, -1))[1] >= view.step
            for step, seconds in self.kept(each, before[place + 1 :], second).items()
            if step >= view.step
        )

    def _kept(
        self, view: ViewLine, steps: Iterable[int], later: Sequence[ViewLine], second: float
    ) -> Iterator[tuple[int, float]]:
        until = min((each.step for each in later), default=None)
        made, ends = self._seconds.get(view.epoch, {}), self._ends.get(view.epoch, {})
        for step in steps:
            if until is None or step < until:
                apart = (ends[step] - ends[step - 1]) / second if {step, step - 1} <= ends.keys() else made[step]
                yield step, min(made[step], apart)

    def in_flight(self, view: ViewLine) -> float | None:
        """When the iteration began that the end of the view before this one interrupted; None if there was none.

        Where views followed each other without a whole iteration between them, it is the first try that counts.
        """
        since = max((epoch for epoch in self._seconds if epoch < view.epoch), default=-1)
        began = min(
            (
                start
                for epoch, (step, start) in self._begun.items()
                if since <= epoch < view.epoch and step >= view.step
            ),
            default=None,
        )
        return began if began is None else max(began, self.ended(view.epoch))
