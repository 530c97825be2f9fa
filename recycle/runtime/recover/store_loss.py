"""The store's loss and its return, as a member lives through them."""

import itertools

from recycle.control.host.agent import STOPPED
from recycle.control.membership.events import StoreBack, StoreGone
from recycle.runtime.errors import ViewBroken
from recycle.runtime.recover.alarm_watch import AlarmWatch
from recycle.runtime.recover.holdings import Holdings
from recycle.runtime.recover.rebuilding import Rebuilding
from recycle.runtime.recover.recovery import Recovery
from recycle.runtime.recover.store_connection import StoreConnection
from recycle.runtime.recover.view_reports import ViewReports


class StoreLoss:
    """Notices between iterations that the store is gone, and that there is one again.

    Args:
        recovery: is told.
        rebuilding: knows the verdict of the present view, which a new store has to get.
        store: the member's connection.
        holdings: its state.
        alarm_watch: uses the store all the time, so it notices first.
        reports: gets what happens.
    """

    def __init__(
        self,
        recovery: Recovery,
        rebuilding: Rebuilding,
        store: StoreConnection,
        holdings: Holdings,
        alarm_watch: AlarmWatch,
        reports: ViewReports,
    ) -> None:
        self._recovery = recovery
        self._rebuilding = rebuilding
        self._store = store
        self._holdings = holdings
        self._alarm_watch = alarm_watch
        self._reports = reports
        self._ids = itertools.count()

    def look(self) -> None:
        """Go on without protection, or be protected again, also where the store was away only since the last look."""
        watch, recovery = self._alarm_watch, self._recovery
        if watch.loss is not None and not recovery.is_unprotected:
            recovery.tell(StoreGone(f"store gone/{next(self._ids)}"))
        if recovery.is_unprotected and watch.reaches:
            # Before it connects, so that the loss of that connection is noticed.
            watch.loss = None
            verdict = self._rebuilding.verdict
            assert verdict is not None, "a member without a view cannot be unprotected"
            stored = self._store.renew(verdict, watch.probe.lasting)
            if stored is not None:
                recovery.tell(StoreBack(f"store back/{next(self._ids)}", stored))
                self._reports.tell_store("protected", "the store is back: failures can be survived again")

    def give_up(self, error: ViewBroken) -> None:
        """A failure cannot be survived without a store: the run ends, and says how it can be gone on with."""
        cause = f"a server failed ({error}) while the store was lost"
        self._recovery.end_with(STOPPED, f"{cause}: {self._holdings.remedy}")
