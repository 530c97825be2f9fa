"""The store's loss and its return, as a member lives through them."""

import itertools
from contextlib import suppress

from recycle.control.host.agent import STOPPED
from recycle.control.membership.errors import StoreErased, StoreLost
from recycle.control.membership.events import StoreBack, StoreGone
from recycle.control.membership.messages import Verdict
from recycle.runtime.errors import ViewBroken
from recycle.runtime.execute.notices import Notices
from recycle.runtime.recover.alarm_watch import AlarmWatch
from recycle.runtime.recover.holdings import Holdings
from recycle.runtime.recover.rebuilding import Rebuilding
from recycle.runtime.recover.recovery import Recovery
from recycle.runtime.recover.store_connection import StoreConnection
from recycle.runtime.recover.view_reports import ViewReports


class StoreLoss:
    """Notices between iterations that the store is gone, and that there is one again.

    Where the store came back without the run's keys, the first member of the view has them count again. A member that
    was cut off until the others came to the end must never do that. So it is done when all members of the view have
    said, in an iteration of all, that they train without a store and have found its keys gone: from then on nobody can
    have made another view, or have come to the end in one.

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

    @property
    def is_erased(self) -> bool:
        """Whether this member trains without a store, because that has lost what the run had written."""
        watch = self._alarm_watch
        return self._recovery.is_unprotected and not watch.reaches and isinstance(watch.loss, StoreErased)

    def look(self) -> None:
        """Go on without protection, or be protected again, also where the store was away only since the last look."""
        watch, recovery = self._alarm_watch, self._recovery
        if watch.loss is not None and not recovery.is_unprotected:
            recovery.tell(StoreGone(f"store gone/{next(self._ids)}"))
        if recovery.is_unprotected and watch.reaches:
            # Before it connects, so that the loss of that connection is noticed.
            watch.loss = None
            stored = self._renew()
            if stored is not None:
                recovery.tell(StoreBack(f"store back/{next(self._ids)}", stored))
                self._reports.tell_store("protected", "the store is back: failures can be survived again")

    def begin_again(self, heard: Notices) -> None:
        """Between two iterations: have the run count again in a store that has lost what the run had written.

        Args:
            heard: what all have said.
        """
        recovery = self._recovery
        if self.is_erased and recovery.is_first and heard.erased == len(recovery.view.members):
            with suppress(StoreLost):
                self._store.endpoint.begin_again()
            self._renew()

    def _renew(self) -> Verdict | None:
        verdict = self._rebuilding.verdict
        assert verdict is not None, "a member without a view cannot be unprotected"
        return self._store.renew(verdict, self._alarm_watch.probe.lasting)

    def give_up(self, error: ViewBroken) -> None:
        """A failure cannot be survived without a store: the run ends, and says how it can be gone on with."""
        cause = f"a server failed ({error}) while the store was lost"
        self._recovery.end_with(STOPPED, f"{cause}: {self._holdings.remedy}")
