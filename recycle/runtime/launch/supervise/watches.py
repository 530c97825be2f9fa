"""What a launcher notices of members whose processes are not its own, and of a run in which nothing happens."""

import time
from collections.abc import Callable, Sequence

from recycle.control.board.board import Board
from recycle.control.host.heartbeats import RisingCounts, Watchlist
from recycle.control.membership.durations import Durations
from recycle.control.membership.messages import Death
from recycle.control.membership.view import Member, View
from recycle.record.recording import IterationLine
from recycle.record.reporting import Event

FIRST, LONGER = 8.0, 10
"""Seconds without news after which that is said; where iterations take long, so many times the longest of late."""


class ElsewhereWatch:
    """Declares those dead whose hosts have stopped giving signs of life.

    Members watch each other; if all that are left are on one machine, no other would miss them. That a sign is
    not in the store, or an older one, proves nothing: then they have to answer an alarm, and are dead only if no view
    follows that.

    Args:
        silence: seconds without a sign after which a host is dead.
        durations: how long members take to answer.
        now: a clock, in seconds.
    """

    def __init__(self, silence: float, durations: Durations, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._rising = RisingCounts[Member]()
        self._silent = Watchlist[Member](silence)
        self._unseen = Watchlist[Member](durations.answer)
        self._unanswered = Watchlist[Member](3 * durations.answer)

    def look(self, board: Board, view: View, elsewhere: Sequence[Member], ranks: int) -> None:
        """Declare silent members dead.

        Args:
            board: of the store.
            view: the newest.
            elsewhere: its members that are watched.
            ranks: of each.

        Raises:
            StoreLost: there is no store.
        """
        now = self._now()
        counts = board.beats.counts(elsewhere, ranks)
        seen = {each: count for each, count in self._rising.risen(counts).items() if count}
        unseen = {each: view.epoch for each in elsewhere if each not in seen}
        silent = self._silent.observe(now, seen) | self._unanswered.observe(now, unseen)
        for member, since in silent.items():
            reason = f"has given no sign of life for {now - since:.1f} s"
            board.failures.publish_death(Death(str(member), reason, "heartbeat", since))
        for member in self._unseen.observe(now, unseen):
            cause = f"{member} has given no sign of life that is in the store"
            board.failures.raise_alarm(view.epoch, cause, "launcher")


class QuietWatch:
    """Says that nothing happens in a run, and when a reason for that is known at the latest.

    That a server hangs is known only after some time. Until then the run would look dead to its user.

    Args:
        hang: seconds after which a frozen process counts as dead.
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
            f"nothing has happened for {quiet:.0f} s, since iteration {self._step + 1}: a frozen process counts as "
            f"dead after {self._hang:g} s, and a stuck one is named later"
        )
