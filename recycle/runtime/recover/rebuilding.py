"""Rebuilding: process groups, state and plan for a new view."""

import time
from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import partial

import torch

from recycle.control.membership.events import BuildFailed, Built, Died, Event
from recycle.control.membership.messages import Verdict, derive_key
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import SOLE, Member, ServerRank, View
from recycle.holding import units, units_of
from recycle.job import Server
from recycle.plan.plan import Plan
from recycle.runtime.errors import NoAnswer, ViewBroken
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.notices import NoticeExchange
from recycle.runtime.net.connect import connect
from recycle.runtime.net.network import Network, NetworkOptions, TransportKind
from recycle.runtime.net.own_ranks import OwnRanks
from recycle.runtime.net.stop_line import StopLine
from recycle.runtime.recover.alarm_watch import AlarmWatch
from recycle.runtime.recover.holdings import Holdings
from recycle.runtime.recover.link_watch import LinkWatch
from recycle.runtime.recover.plans import ViewPlans
from recycle.runtime.recover.restore import Restoration, find_holders
from recycle.runtime.recover.store_connection import StoreConnection
from recycle.runtime.recover.view_reports import ViewReports
from recycle.runtime.step.trainee import Connectable

MOST_PATIENT = 4
"""So many times what a rebuild may take is waited for at most, where it has failed before: the network may be slow."""


class Groups:
    """A member's process groups, of one view at a time.

    Args:
        member: who this is.
        store: where members meet.
        alarm_watch: frees the thread that trains from the groups of a view that is over.
        links: is told from whom no answer comes.
        rank: of the server.
        transport: what carries its tensors.
    """

    def __init__(
        self,
        member: Member,
        store: StoreConnection,
        alarm_watch: AlarmWatch,
        links: LinkWatch,
        rank: ServerRank = SOLE,
        transport: TransportKind = "gloo",
    ) -> None:
        self._member = member
        self._rank = rank
        self._transport = transport
        self._store = store
        self._alarm_watch = alarm_watch
        self._links = links
        self._network: Network | None = None
        self._own: OwnRanks | None = None
        # Views in a row that could not be built.
        self._failures = 0

    @property
    def network(self) -> Network:
        """Of the present view."""
        assert self._network is not None, f"{self._member} is in no view"
        return self._network

    def leave(self, epoch: int) -> None:
        """Have done with the groups of the last view.

        Args:
            epoch: of the view that comes.
        """
        self._alarm_watch.follow(epoch)
        if self._network is not None:
            # All have left it, and what is still under way would stay on a device, in the way of what comes.
            self._network.unblock()
        self._alarm_watch.discard(self._network)
        self._network = None

    def build(self, view: View, partners: Collection[Server]) -> Network:
        """Connect to other members of a view.

        Args:
            view: that is built.
            partners: whom the plan has this member send to or receive from.

        Raises:
            ViewBroken: somebody is gone.
        """
        store, watch, server = self._store, self._alarm_watch, self._member.server
        options = NetworkOptions(
            timedelta(seconds=store.durations.transfer),
            timedelta(seconds=store.durations.rebuild * min(2**self._failures, MOST_PATIENT)),
            store.endpoint.address,
            self._transport,
            derive_key(store.endpoint.token, f"epoch/{view.epoch}"),
        )
        self._failures += 1
        try:
            line = partial(self._make_line, options)
            network = connect(store.meeting(), view, server, options, self._rank, watch.check, partners, line)
        except NoAnswer as error:
            self._links.blame(store.board, error.partners)
            raise
        self._failures = 0
        self._network = network
        watch.follow(view.epoch, network)
        watch.check()
        return network

    def _make_line(self, options: NetworkOptions, network: Network) -> StopLine:
        if self._own is None:
            self._own = OwnRanks(self._store.meeting, Participant(self._member, self._rank), options)
        alarm, patience = partial(self._raise_alarm, network.view.epoch), options.transfer_timeout.total_seconds()
        return StopLine(lambda: network.ranks.sum(torch.zeros(1)), self._own.start, alarm, patience)

    def _raise_alarm(self, epoch: int, error: ViewBroken) -> None:
        if not self._alarm_watch.noticed:
            name = self._rank.of(self._member)
            self._store.board.failures.raise_alarm(epoch, str(error), name)

    def settle(self) -> None:
        """The view stands: nobody needs the groups of the last one any more.

        Raises:
            Interrupted: it is over already.
        """
        self._alarm_watch.check()
        self._alarm_watch.end_discarded()


class Rebuilding:
    """How a member gets from a verdict to the point where it can work in the view.

    Args:
        member: who this is.
        groups: of the member.
        store: where members meet.
        holdings: the member's state.
        plans: of the views.
        connection: what works in the view.
        hooks: what looks on while instructions are executed.
        reports: gets what happens.

    Attributes:
        verdict: the last one whose view was built; None before the first.
        plan: of that view.
    """

    def __init__(
        self,
        member: Member,
        groups: Groups,
        store: StoreConnection,
        holdings: Holdings,
        plans: ViewPlans,
        connection: Connectable,
        hooks: Sequence[Hooks],
        reports: ViewReports,
    ) -> None:
        self.verdict: Verdict | None = None
        self.plan: Plan | None = None
        self._member = member
        self._groups = groups
        self._store = store
        self._holdings = holdings
        self._plans = plans
        self._connection = connection
        self._hooks = hooks
        self._reports = reports
        self._notices: NoticeExchange | None = None

    @property
    def notices(self) -> NoticeExchange:
        """Of the present view."""
        assert self._notices is not None, "no view has been built"
        return self._notices

    def add_leaving(self, leaving: tuple[int, ...]) -> None:
        """From a signal handler: have it posted next in the present view that this server leaves.

        Args:
            leaving: what it holds, as notices say it.
        """
        if self._notices is not None:
            self._notices.say = self._notices.say._replace(leaving=leaving)

    def rebuild(self, verdict: Verdict) -> list[Event]:
        """Build a view: its groups, the version that it begins with, and its plan.

        Args:
            verdict: that begins the view.

        Returns:
            What came of it: the deaths that who proposed the view may not have heard of; or Built, or BuildFailed.

        Raises:
            StoreLost: there is no store.
        """
        view, reports = verdict.view, self._reports
        reports.times.agreed = time.monotonic()
        reports.decide(verdict)
        self._groups.leave(view.epoch)
        unheard = self._store.board.failures.unheard(verdict)
        if unheard:
            return [Died(f"death/{death.member}", death) for death in unheard]
        try:
            plan = self._plans.find(verdict)
            holders = find_holders(verdict, plan.job, self._member.server)
            network = self._groups.build(view, plan.partners(self._member.server))
            reports.times.rebuilt = time.monotonic()
            mine = units_of(plan.job, self._member.server)
            self._holdings.restore(network, Restoration(verdict.step, verdict.restore, holders, mine))
            self._notices = NoticeExchange(network, len(units(plan.job)))
            self._connection.connect(plan, network, self._hooks, self._notices)
            self._groups.settle()
        except ViewBroken as error:
            return [BuildFailed(f"build/{view.epoch}", view.epoch, str(error))]
        reports.times.restored = time.monotonic()
        self.verdict, self.plan = verdict, plan
        reports.tell_view(plan)
        return [Built(f"built/{view.epoch}", view.epoch)]
