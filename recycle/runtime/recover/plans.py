"""The plan of each view: from the first plan, a catalogue, or a planner that is put in from above and asked now."""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from recycle.control.membership.messages import CataloguePlan, ChosenPlan, FirstPlan, PublishedPlan, Verdict
from recycle.control.membership.view import Member
from recycle.errors import NoPlanError, UserError
from recycle.holding import with_layout
from recycle.job import DeadServers, Job
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


class Plans(NamedTuple):
    """Where plans come from.

    Attributes:
        first: the plan that the run starts with.
        catalogue: plans made before the run; None for none.
        make: makes a plan in bounded time where there is none.
        mover: decides whether chunks move, and plans where they have; None where they do not.
    """

    first: Plan
    catalogue: Catalogue | None
    make: Maker
    mover: Mover | None = None


class ViewPlans:
    """What one member does about the plans of views.

    Args:
        member: who this is.
        job: what is trained.
        plans: where plans come from.
        store: where a plan that was made for a view is published.

    Attributes:
        ready: a plan that was made already, for the next view.
    """

    def __init__(self, member: Member, job: Job, plans: Plans, store: StoreConnection) -> None:
        self.ready: Plan | None = None
        self._member = member
        self._job = job
        self._plans = plans
        self._store = store
        self._found: Found | None = None

    def choose(self, verdict: Verdict) -> Verdict:
        """Complete a verdict before it is proposed: with the plan, or with the reason why there is none.

        Raises:
            StoreLost: the plan cannot be published.
        """
        if verdict.stop:
            return verdict
        try:
            chosen, made = self._choose(verdict)
            if made is not None:
                self._store.board.plans.publish(verdict.epoch, self._member, encode_plan(made))
        except UserError as error:
            return msgspec.structs.replace(verdict, stop=str(error))
        return msgspec.structs.replace(verdict, plan=chosen)

    def find(self, verdict: Verdict) -> Plan:
        """The plan of a view, with this server's list at least.

        Args:
            verdict: that began the view.

        Raises:
            StoreLost: it cannot be read.
            ConnectionLost: it is gone, as the others are in a later view.
        """
        match verdict.plan:
            case FirstPlan():
                return self._plans.first
            case CataloguePlan():
                return self._look_up(self._dead(verdict)).plan_of(self._member.server)
            case PublishedPlan(author):
                text = self._store.board.plans.find(verdict.epoch, Member.parse(author))
                if text is None:
                    raise ConnectionLost(f"the plan of view {verdict.epoch} is gone")
                return decode_plan(text, str(verdict.plan), self._member.server)
            case None:
                raise AssertionError(f"the verdict of epoch {verdict.epoch} names no plan")

    def _choose(self, verdict: Verdict) -> tuple[ChosenPlan, Plan | None]:
        """Where the plan of a view is, and the plan itself if it has to be published."""
        dead, plans, published = self._dead(verdict), self._plans, PublishedPlan(str(self._member))
        if verdict.layout is not None:
            moved = with_layout(self._job, verdict.layout)
            if self.ready is not None and (self.ready.job, self.ready.dead) == (moved, dead):
                return published, self.ready
            assert plans.mover is not None, "no layers have moved"
            return published, plans.mover.plan(moved, dead)
        if dead == plans.first.dead:
            return FIRST, None
        if plans.catalogue is not None:
            with suppress(NoPlanError):
                self._look_up(dead)
                return CataloguePlan(), None
        return published, plans.make(dead)

    def _look_up(self, dead: DeadServers) -> Found:
        catalogue = self._plans.catalogue
        assert catalogue is not None, "a plan was found in it"
        if self._found is None or self._found.dead != dead:
            self._found = catalogue.look_up(dead)
        return self._found

    def _dead(self, verdict: Verdict) -> DeadServers:
        job = with_layout(self._job, verdict.layout)
        return job.dead_servers(set(job.servers()) - set(verdict.view.servers))
