"""The source of plans: the run's first plan, a catalogue, or a planner that is put in from above and asked now."""

from collections.abc import Callable, Sequence

from recycle.control.messages import CataloguePlan, ChosenPlan, FirstPlan, PublishedPlan
from recycle.control.view import Member
from recycle.errors import NoPlanError
from recycle.job import Server
from recycle.plan.catalogue import Catalogue, Found
from recycle.plan.document import decode_plan, encode_plan
from recycle.plan.plan import Plan

FIRST = FirstPlan()

Maker = Callable[[Sequence[Server]], Plan]


class Plans:
    """Finds plans.

    Args:
        first: the plan that the run starts with.
        catalogue: plans made before the run; None for none.
        make: makes a plan in bounded time where there is none.
    """

    def __init__(self, first: Plan, catalogue: Catalogue | None, make: Maker) -> None:
        self._first = first
        self._catalogue = catalogue
        self._make = make
        self._found: Found | None = None

    def choose(self, failed: Sequence[Server], author: Member) -> tuple[ChosenPlan, bytes]:
        """Choose for all: where the plan for these failures is, and its text if that has to be published.

        Args:
            failed: the failed servers.
            author: who chooses.

        Raises:
            NoPlanError: there is none, and none can be made.
        """
        if tuple(failed) == self._first.failed:
            return FIRST, b""
        if self._catalogue is not None:
            try:
                self._look_up(failed)
            except NoPlanError:
                pass
            else:
                return CataloguePlan(), b""
        return PublishedPlan(str(author)), encode_plan(self._make(failed))

    def find(self, chosen: ChosenPlan, failed: Sequence[Server], server: Server, text: bytes) -> Plan:
        """The plan that was chosen, with the list of at least one server.

        Args:
            chosen: where it is.
            failed: the failed servers.
            server: whose list is needed.
            text: what was published; empty where nothing was.
        """
        match chosen:
            case FirstPlan():
                return self._first
            case CataloguePlan():
                return self._look_up(failed).plan_of(server)
            case PublishedPlan():
                return decode_plan(text, str(chosen), server)

    def _look_up(self, failed: Sequence[Server]) -> Found:
        assert self._catalogue is not None
        if self._found is None or self._found.failed != tuple(failed):
            self._found = self._catalogue.look_up(failed)
        return self._found
