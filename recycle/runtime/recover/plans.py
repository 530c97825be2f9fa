"""The plan of each view: from the first plan, a catalogue, or a planner that is put in from above and asked now."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from recycle.control.membership.messages import CataloguePlan, ChosenPlan, FirstPlan, PublishedPlan, Verdict
from recycle.control.membership.view import Member
from recycle.errors import NoPlanError, UserError
from recycle.holding import with_layout
from recycle.job import DeadServers, Job, Server
from recycle.plan.catalogue import Catalogue, Found
from recycle.plan.document import decode_plan, encode_plan
from recycle.plan.moves import Mover
from recycle.plan.plan import Plan
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.recover.store_connection import StoreConnection

FIRST = FirstPlan()

Maker = Callable[[DeadServers], Plan]


class Planning(NamedTuple):
    """What plans while a run goes on; it is put in from above.

    Attributes:
        make: makes a plan in bounded time, for which no catalogue has one.
        mover: decides whether chunks move, and plans where they have; None where they do not.
        catalogue: plans made before the run; None for none.
    """

    make: Maker
    mover: Mover | None = None
    catalogue: Catalogue | None = None


class Plans:
    """Finds plans.

    Args:
        first: the plan that the run starts with.
        catalogue: plans made before the run; None for none.
        make: makes a plan in bounded time where there is none.
        mover: decides whether chunks move, and plans where they have; None where they do not.

    Attributes:
        mover: see above.
        ready: a plan that was made already, for the next view.
    """

    def __init__(self, first: Plan, catalogue: Catalogue | None, make: Maker, mover: Mover | None = None) -> None:
        self.mover = mover
        self.ready: Plan | None = None
        self._first = first
        self._catalogue = catalogue
        self._make = make
        self._found: Found | None = None

    def choose(self, dead: DeadServers, author: Member, moved: Job | None = None) -> tuple[ChosenPlan, bytes]:
        """Choose for all: where the plan for these dead servers is, and its text if that has to be published.

        Args:
            dead: the dead servers.
            author: who chooses.
            moved: what is trained, where chunks have moved.

        Raises:
            NoPlanError: there is none, and none can be made.
        """
        if moved is not None:
            assert self.mover is not None, "nobody has moved anything"
            if self.ready is not None and (self.ready.job, self.ready.dead) == (moved, dead):
                return PublishedPlan(str(author)), encode_plan(self.ready)
            return PublishedPlan(str(author)), encode_plan(self.mover.plan(moved, dead))
        if dead == self._first.dead:
            return FIRST, b""
        if self._catalogue is not None:
            try:
                self._look_up(dead)
            except NoPlanError:
                pass
            else:
                return CataloguePlan(), b""
        return PublishedPlan(str(author)), encode_plan(self._make(dead))

    def find(self, chosen: ChosenPlan, dead: DeadServers, server: Server, text: bytes) -> Plan:
        """The plan that was chosen, with the list of at least one server.

        Args:
            chosen: where it is.
            dead: the dead servers.
            server: whose list is needed.
            text: what was published; empty where nothing was.
        """
        match chosen:
            case FirstPlan():
                return self._first
            case CataloguePlan():
                return self._look_up(dead).plan_of(server)
            case PublishedPlan():
                return decode_plan(text, str(chosen), server)

    def _look_up(self, dead: DeadServers) -> Found:
        assert self._catalogue is not None
        if self._found is None or self._found.dead != dead:
            self._found = self._catalogue.look_up(dead)
        return self._found


class ViewPlans:
    """What one member does about the plans of views.

    Args:
        member: who this is.
        job: what is trained.
        plans: where plans come from.
        store: where a plan that was made for a view is published.
    """

    def __init__(self, member: Member, job: Job, plans: Plans, store: StoreConnection) -> None:
        self._member = member
        self._job = job
        self._plans = plans
        self._store = store

    def choose(self, verdict: Verdict) -> Verdict:
        """Complete a verdict before it is proposed: with the plan, or with the reason why there is none.

        Raises:
            StoreLost: the plan cannot be published.
        """
        if verdict.stop:
            return verdict
        try:
            moved = None if verdict.layout is None else with_layout(self._job, verdict.layout)
            chosen, text = self._plans.choose(self._dead(verdict), self._member, moved)
            if text:
                self._store.board.plans.publish(verdict.epoch, self._member, text)
        except UserError as error:
            return msgspec.structs.replace(verdict, stop=str(error))
        return msgspec.structs.replace(verdict, plan=chosen)

    def text(self, verdict: Verdict) -> bytes:
        """The text of a verdict's plan, if it was published; empty where it was not.

        Raises:
            StoreLost: it cannot be read.
            ConnectionLost: it is gone, as the others are in a later view.
        """
        match verdict.plan:
            case PublishedPlan(author):
                text = self._store.board.plans.find(verdict.epoch, Member.parse(author))
                if text is None:
                    raise ConnectionLost(f"the plan of view {verdict.epoch} is gone")
                return text
            case _:
                return b""

    def find(self, verdict: Verdict, text: bytes) -> Plan:
        """The plan of a view, with this server's list at least.

        Args:
            verdict: that began the view.
            text: of its plan.
        """
        assert verdict.plan is not None, f"the verdict of epoch {verdict.epoch} names no plan"
        return self._plans.find(verdict.plan, self._dead(verdict), self._member.server, text)

    def _dead(self, verdict: Verdict) -> DeadServers:
        job = with_layout(self._job, verdict.layout)
        return job.dead_servers(set(job.servers()) - set(verdict.view.servers))
