"""The store's loss and its return, as a member lives through them."""

import itertools
from contextlib import suppress

from recycle.control.host.agent import STOPPED
from recycle.control.membership.errors import StoreErased, StoreLost
from recycle.control.membership.events import StoreBack, StoreGone
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
        return self._recovery.is_unprotected and isinstance(self._alarm_watch.loss, StoreErased)

    def look(self, heard: Notices) -> None:
        """Between two iterations: go on without protection, or be protected again.

        Args:
            heard: what all have said.
        """
        loss, recovery = self._alarm_watch.loss, self._recovery
        if loss is not None and not recovery.is_unprotected:
            recovery.tell(StoreGone(f"store gone/{next(self._ids)}"))
            return
        if not recovery.is_unprotected:
            return
        verdict = self._rebuilding.verdict
        assert verdict is not None, "a member without a view cannot be unprotected"
        lasting = self._alarm_watch.probe.lasting
        if loss is None:
            stored = self._store.renew(verdict, lasting)
            if stored is not None:
                recovery.tell(StoreBack(f"store back/{next(self._ids)}", stored))
                self._reports.tell_store("protected", "the store is back: failures can be survived again")
        elif self.is_erased and recovery.is_first and heard.erased == len(recovery.view.members):
            with suppress(StoreLost):
                self._store.endpoint.begin_again()
            self._store.renew(verdict, lasting)

    def give_up(self, error: ViewBroken) -> None:
        """A failure cannot be survived without a store: the run ends, and says how it can be gone on with."""
        cause = f"a server failed ({error}) while the store was lost"
        self._recovery.end_with(STOPPED, f"{cause}: {self._holdings.remedy}")
