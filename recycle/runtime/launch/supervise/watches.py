"""What a launcher notices of members whose processes are not its own."""

import time
from collections.abc import Callable, Sequence

from recycle.control.board.board import Board
from recycle.control.host.heartbeats import RisingCounts, Watchlist
from recycle.control.membership.durations import Durations
from recycle.control.membership.messages import Death
from recycle.control.membership.view import Member, View


class ElsewhereWatch:
    """Declares those dead whose hosts have stopped giving signs of life.

    Members watch each other; if all that are left are on one machine, no other would miss them. If the launcher hears
    none of them, it may be the network. That a sign is not in the store, or an older one, proves nothing: then they
    have to answer an alarm, and are dead only if no view follows that.

    Args:
        silence: seconds without a sign after which members count each other's hosts as dead.
        durations: how long members take to answer.
        now: a clock, in seconds.
    """

    def __init__(self, silence: float, durations: Durations, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._rising = RisingCounts[Member]()
        self._silent = Watchlist[Member](max(silence, durations.doubt))
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
