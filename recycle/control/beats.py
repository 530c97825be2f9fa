"""Heartbeats: a worker gives signs of life, and others notice when they stop."""

import threading
from collections.abc import Callable, Collection, Mapping

from recycle.control.board import Board
from recycle.control.errors import StoreLost
from recycle.control.store import Store
from recycle.control.view import Member, View

WATCHED = 2
"""How many members each one watches, so that one is still watched when its neighbour dies with its agent."""


class Heartbeat:
    """Gives signs of life from a thread of its own over a connection of its own, until it is stopped.

    So it goes on whatever the main thread does, and stops only with the process. If the store is lost it connects again
    as soon as there is one.

    Args:
        member: whose signs they are.
        connect: makes a connection to the store, or raises StoreLost.
        token: the run's.
        beat: seconds between two signs.
        look: what else is looked at as often, while the thread is awake and connected; it must not take long.
        rank: which of the member's ranks gives them.
    """

    def __init__(
        self,
        member: Member,
        connect: Callable[[], Store],
        token: str,
        beat: float,
        look: Callable[[Board], None] | None = None,
        rank: int = 0,
    ) -> None:
        self._member = member
        self._connect = connect
        self._token = token
        self._beat = beat
        self._look = look
        self._rank = rank
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat of {member}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Give no more signs."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        board: Board | None = None
        count = 0
        while True:
            try:
                board = board or Board(self._connect(), self._token)
                count += 1
                board.beats.give(self._member, count, self._rank)
                if self._look is not None:
                    self._look(board)
            except StoreLost:
                board = None
            if self._stopping.wait(self._beat):
                return


def watched(view: View, me: Member, dead: Collection[Member]) -> tuple[Member, ...]:
    """Whose signs of life a member's agent watches: the next members in the ring that are not known to be dead.

    Args:
        view: the view.
        me: a member of it.
        dead: whose death is known; of others, the silence will be noticed.
    """
    found: list[Member] = []
    for member in view.after(me):
        if len(found) == WATCHED:
            break
        if member not in dead:
            found.append(member)
    return tuple(found)


class Watchlist:
    """Notices whose signs of life have stopped.

    It accuses nobody of a pause of its own: where it was itself not called for more than half the limit, because its
    process was stopped or the store hung, it begins anew.

    Args:
        silence: the limit, in seconds.
    """

    def __init__(self, silence: float) -> None:
        self._silence = silence
        self._called = float("-inf")
        self._last: dict[Member, tuple[int, float]] = {}

    def observe(self, now: float, beats: Mapping[Member, int]) -> dict[Member, float]:
        """Take note of some members' signs of life.

        Args:
            now: the time in seconds, on a clock that never goes back.
            beats: how many signs each member has given. A member that is not in it is not watched any more.

        Returns:
            Those who have been silent for longer than the limit, and since when.
        """
        if now - self._called > self._silence / 2:
            self._last.clear()
        self._called = now
        seen = {}
        for member, count in beats.items():
            last = self._last.get(member)
            seen[member] = last if last is not None and last[0] == count else (count, now)
        self._last = seen
        return {member: since for member, (_, since) in seen.items() if now - since > self._silence}
