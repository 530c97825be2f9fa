"""What is said of a run in which nothing happens, before it is known why."""

import time
from collections.abc import Callable

from recycle.record.recording import IterationLine
from recycle.record.reporting import Event

FIRST, LONGER = 8.0, 10
"""Seconds without news after which that is said; where iterations take long, so many times the longest of late."""


class QuietWatch:
    """Says that nothing happens in a run, and when a reason for that is known at the latest.

    A server that hangs is known to hang only after some time. Until then the run would look dead to its user.

    Args:
        hang: seconds after which a server that hangs counts as dead.
        now: a clock, in seconds.
    """

    def __init__(self, hang: float, now: Callable[[], float] = time.monotonic) -> None:
        self._hang = hang
        self._now = now
        self._step: int | None = None
        self._heard = self._due = 0.0
        self._longest = 0.0

    def hear(self, event: Event) -> None:
        """Take in what has happened."""
        if isinstance(event, IterationLine):
            # What was once slow is forgotten in some dozens of iterations.
            self._longest = max(event.seconds, 0.95 * self._longest)
            self._step = max(event.step, self._step or 0)
        self._heard = self._now()
        self._due = self._heard + max(FIRST, LONGER * self._longest)

    def news(self) -> str:
        """What is to be said now; empty for nothing."""
        if self._step is None or self._now() < self._due:
            return ""
        quiet = self._now() - self._heard
        # It is said again, and ever more rarely.
        self._due = self._heard + 2 * quiet
        return (
            f"nothing has happened for {quiet:.0f} s, since iteration {self._step + 1}: a server that hangs counts as "
            f"dead after {self._hang:g} s"
        )
