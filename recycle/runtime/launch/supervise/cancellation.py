"""How the servers of a run are told to end before it is done, wherever they were started."""

from collections.abc import Callable, Container, Iterable
from contextlib import suppress

from recycle.control.board.board import Board
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.view import Member
from recycle.record.recording import InstantLine
from recycle.runtime.launch.process.outcome import live_elsewhere
from recycle.runtime.launch.process.signals import EndSignals, tell_to_leave
from recycle.runtime.recover.view_reports import now


class Cancellation:
    """What a launcher does once it is told to end.

    Args:
        signals: that it takes.
        tell: called with what it does.
    """

    def __init__(self, signals: EndSignals, tell: Callable[[InstantLine], None]) -> None:
        self._signals = signals
        self._tell = tell
        self._told = False
        self._called = -1

    def tell_here(self, workers: Iterable[int]) -> None:
        """Tell the workers that the launcher has started, if this was not done yet.

        Args:
            workers: their processes.
        """
        if self._signals.number and not self._told:
            self._told = True
            text = f"{self._signals.name}: the servers here end before one of the next iterations; again to end at once"
            self._tell(InstantLine("warning", now(), None, text))
            for each in workers:
                tell_to_leave(each)

    def tell_elsewhere(self, board: Board, here: Container[Member]) -> None:
        """Tell those who have joined from elsewhere: without the launcher's store they would not survive a failure.

        Args:
            board: of the run; all members of its newest epoch are called, if this was not done yet.
            here: who was started by the launcher.
        """
        if self._signals.number:
            with suppress(StoreLost):
                begun = board.verdicts.begun()
                if begun is not None and begun.view.epoch > self._called and live_elsewhere(board, here):
                    board.end.call_off(begun.view.epoch, self._signals.name)
                    self._called = begun.view.epoch
