"""The bystander: what is in a worker's place on a server that holds no chunk.

Servers keep step by what they send each other, and it gets nothing. So where there is one, all say something in every
iteration (``notices``), which it waits for.
"""

from typing import Protocol

from recycle.runtime.execute.notices import NoticeExchange
from recycle.runtime.execute.stage import Redo
from recycle.runtime.execute.worker import IterationReport
from recycle.runtime.net.network import Network, confirm


class Attending(Protocol):
    """What such a server does at the end of an iteration."""

    def validate(self) -> Redo:
        """See StageUpdate."""

    def attend(self) -> Redo:
        """Take part in what takes all servers, and be at the next version. Or it says that this cannot be."""


class Bystander:
    """Makes all iterations with the others.

    Args:
        update: what counts them.
        network: the groups of its view.
        notices: what servers tell each other in every iteration; None where nobody does.
    """

    def __init__(self, update: Attending, network: Network, notices: NoticeExchange | None) -> None:
        self._update = update
        self._network = network
        self._notices = notices

    @property
    def report(self) -> IterationReport:
        """See Worker."""
        return IterationReport((), 0)

    def run(self, step: int) -> IterationReport:
        """See Worker.

        Raises:
            ViewBroken: somebody is gone.
        """
        self._make()
        return self.report

    def settle(self) -> None:
        """See Worker.

        Raises:
            ViewBroken: somebody is gone.
        """
        while self._update.validate() is Redo.LAST:
            self._make()

    def evaluate(self) -> tuple[float, ...]:
        """See Worker: there is nothing that it could compute.

        Raises:
            ViewBroken: a server is gone.
        """
        confirm(self._network)
        return ()

    def close(self) -> None:
        """See Worker."""
        vars(self).clear()

    def _make(self) -> None:
        while (redo := self._attempt()) is not Redo.NOTHING:
            if redo is Redo.LAST:
                self._make()

    def _attempt(self) -> Redo:
        redo = self._update.validate()
        if redo is not Redo.NOTHING:
            return redo
        if self._notices is not None:
            self._notices.exchange()
        return self._update.attend()
