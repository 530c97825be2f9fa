"""The plan of each view: chosen by who proposes the view, and found again by all its members."""

import msgspec

from recycle.control.membership.messages import PublishedPlan, Verdict
from recycle.control.membership.view import Member
from recycle.errors import UserError
from recycle.holding import with_layout
from recycle.job import DeadServers, Job
from recycle.plan.plan import Plan
from recycle.runtime.recover.plans import Plans
from recycle.runtime.recover.store_connection import StoreConnection


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
        except UserError as error:
            return msgspec.structs.replace(verdict, stop=str(error))
        if text:
            self._store.board.plans.publish(verdict.epoch, self._member, text)
        return msgspec.structs.replace(verdict, plan=chosen)

    def text(self, verdict: Verdict) -> bytes:
        """The text of a verdict's plan, if it was published; empty where it was not.

        Raises:
            StoreLost: it cannot be read.
        """
        match verdict.plan:
            case PublishedPlan(author):
                return self._store.board.plans.find(verdict.epoch, Member.parse(author)) or b""
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
