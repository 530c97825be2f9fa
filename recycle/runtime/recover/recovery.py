"""Recovery: the membership machine of one member, told what happens, and its actions, carried out.

There is one queue. To perform an action may give further events, which are told to the machine after those that were
there before; no action ever calls the machine.
"""

import itertools
from collections import deque
from collections.abc import Collection, Sequence

from recycle.control.host.agent import DONE, FENCED, STOPPED
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.events import (
    Accuse,
    Action,
    Decided,
    Event,
    Exit,
    Halted,
    Noticed,
    Opened,
    Paused,
    Prepare,
    Propose,
    PublishReport,
    RaiseAlarm,
    Rebuild,
    Resume,
    Stop,
    WaitForJoiners,
    WarnUnprotected,
)
from recycle.control.membership.machine import Machine, State
from recycle.control.membership.view import Member, View
from recycle.job import Job
from recycle.placement import Layout
from recycle.runtime.errors import lost_before_view
from recycle.runtime.recover.admission import Admission
from recycle.runtime.recover.alarm_watch import AlarmWatch
from recycle.runtime.recover.gathering import Gathering
from recycle.runtime.recover.holdings import Holdings
from recycle.runtime.recover.plans import ViewPlans
from recycle.runtime.recover.rebuilding import Rebuilding
from recycle.runtime.recover.view_reports import ViewReports


class Recovery:
    """Takes a member from one view to the next.

    Args:
        machine: of the member.
        gathering: how it talks to the others.
        rebuilding: how a new view is built.
        plans: of the views.
        admission: of joiners, or of this member.
        holdings: its state.
        alarm_watch: frees the thread that trains.
        reports: gets what happens.

    Attributes:
        step: the iteration that is made next.
        end: the exit status with which this process has to end; None as long as it can go on.
        stop: why the run cannot go on, as far as this member can see; empty if it can.
    """

    def __init__(
        self,
        machine: Machine,
        gathering: Gathering,
        rebuilding: Rebuilding,
        plans: ViewPlans,
        admission: Admission,
        holdings: Holdings,
        alarm_watch: AlarmWatch,
        reports: ViewReports,
    ) -> None:
        self.step = 0
        self.end: int | None = None
        self.stop = ""
        self._machine = machine
        self._gathering = gathering
        self._rebuilding = rebuilding
        self._plans = plans
        self._admission = admission
        self._holdings = holdings
        self._alarm_watch = alarm_watch
        self._reports = reports
        self._attempts = Attempts()
        self._ids = (f"own/{number}" for number in itertools.count())

    @property
    def view(self) -> View:
        """In which the member is."""
        return self._machine.view

    @property
    def job(self) -> Job:
        """What is trained, with what each server holds in the view."""
        return self._machine.job

    @property
    def is_unprotected(self) -> bool:
        """Whether the member trains without a store."""
        return self._machine.state is State.UNPROTECTED

    def new_id(self) -> str:
        """For an event that is told once."""
        return next(self._ids)

    def enter(self) -> None:
        """Wait for the first view with this member in it, and enter it."""
        if self._machine.me.incarnation == 0:
            self._open()
        while self._machine.state is State.JOINING and self.end is None:
            try:
                self._join()
            except StoreLost as error:
                self.end_with(STOPPED, lost_before_view(self._machine.me.incarnation, error))
        self._gather()

    def fail(self, cause: str) -> None:
        """The view cannot go on: get to the next one, or to the end.

        Raises:
            StoreLost: there is no store.
        """
        self._admission.abort()
        self.tell(Noticed(self.new_id(), self.view.epoch, cause))
        self._halt_in_vain()
        self._gather()

    def pause(self, layout: Layout | None = None) -> None:
        """All members halt before the same iteration, so that joiners can be admitted: get to the next view.

        Args:
            layout: who is to hold what in it, if this member leads and has found something better.

        Raises:
            StoreLost: there is no store.
        """
        self._admission.finish()
        epoch = self.view.epoch
        self.tell(Paused(self.new_id(), epoch, self.step, layout))
        if self._machine.leads:
            # Before this member says that it has halted: who is let in has to say what it holds.
            for event in self._gathering.hear_out(self.view, self._expected):
                self.tell(event)
        self._halt()
        self._gather()

    def tell(self, event: Event) -> None:
        """Tell the machine, and do what it wants, until nothing more comes of it.

        Raises:
            StoreLost: there is no store.
        """
        queue = deque([event])
        while queue:
            for action in self._machine.handle(queue.popleft()):
                queue.extend(self._perform(action))

    def end_with(self, status: int, reason: str) -> None:
        """This process has to end."""
        self.end = status
        self._reports.end(reason)

    def _open(self) -> None:
        """The run begins with this member in it, which is ready: announce it."""
        try:
            opening = self._gathering.await_opening()
            if opening is None:
                self.end_with(STOPPED, "nobody has said with whom the run begins: train again")
                return
            self._holdings.empty = opening.restore == "checkpoint"
            self.tell(Opened("opening", opening))
        except StoreLost as error:
            self.end_with(STOPPED, lost_before_view(self._machine.me.incarnation, error))

    def _expected(self) -> Collection[Member]:
        """Who is about to say that it can be let in; nobody any more after an alarm."""
        return () if self._alarm_watch.noticed else self._admission.expected(self.view.epoch)

    def _join(self) -> None:
        """Wait for a verdict; in the view of the run, get the state first, and say what came of it."""
        admission, epoch = self._admission, self.view.epoch
        if epoch >= 0 and self._gathering.is_over(self.view):
            self.end_with(FENCED, f"the run has ended before {self._machine.me} was back")
            return
        if admission.find_rival(self.view) is not None:
            server = self._machine.me.server
            self.end_with(FENCED, f"{server} was started twice, and is in the run already: this process takes no part")
            return
        if epoch < 0 or admission.is_ready:
            verdict = admission.await_verdict(epoch)
        else:
            if admission.follow():
                self._holdings.empty = not admission.has_arrived
                self._halt()
            verdict = admission.verdict(epoch)
        death = self._gathering.own_death() if verdict is None else None
        if death is not None:
            # Another rank of this server has died on the way.
            self.tell(death)
        if verdict is not None:
            admission.end_joining()
            self.tell(Decided(f"view/{verdict.epoch}", verdict))

    def _halt_in_vain(self) -> None:
        self.stop = self.stop or self._attempts.note(self.view, self.step, self._reports.cause)
        self._halt()

    def _halt(self) -> None:
        """Come to a safe point, and say what this member holds."""
        self._alarm_watch.halt()
        holdings = self._holdings
        holdings.drop()
        self.tell(Halted(self.new_id(), holdings.report(self.view.epoch, self.stop)))

    def _gather(self) -> None:
        """Until training goes on or this process ends: hear what the others say, and do what the machine wants."""
        machine = self._machine
        while self.end is None and machine.state is not State.TRAINING:
            try:
                if machine.state is State.HALTING:
                    self._halt_in_vain()
                    continue
                if self._holdings.done and self._gathering.is_over(machine.view):
                    # Somebody died at the very end; those who saw it before the alarm do not take part in a recovery.
                    self.end = DONE
                    return
                self._look()
            except StoreLost:
                self.end_with(STOPPED, "the store was lost during a recovery: resume from the last checkpoint")

    def _look(self) -> None:
        epoch = self.view.epoch
        for event in self._gathering.look(self._machine):
            self.tell(event)
            if self.view.epoch != epoch or self.end is not None:
                return

    def _perform(self, action: Action) -> Sequence[Event]:
        """Carry out an action; gives what comes of it."""
        match action:
            case RaiseAlarm(epoch, cause):
                # Whom all are called to hear need not be said again by everybody.
                heard = self._alarm_watch.heard(epoch)
                self._reports.cause = heard or self._gathering.raise_alarm(epoch, cause).cause
            case PublishReport(report):
                self._gathering.publish(report)
            case Propose(verdict):
                stored = self._gathering.propose(self.view, self._plans.choose(verdict))
                return [Decided(f"view/{stored.epoch}", stored)]
            case Accuse(member):
                self._gathering.accuse(member, self._machine.starts)
            case Rebuild(verdict):
                self._admission.abort()
                return self._rebuilding.rebuild(verdict)
            case Resume(_, step):
                self.step = step
                if self._machine.leads:
                    self._gathering.outlive(self.view)
            case Prepare(view):
                self._holdings.empty = True
                self._admission.prepare(view)
            case WaitForJoiners(stages):
                names = ", ".join(map(str, stages))
                self._reports.warn(f"no live server of stage {names} is left: waiting for a replacement")
            case WarnUnprotected():
                self._reports.tell_store(
                    "unprotected",
                    f"the store is lost: training goes on, but no failure can be survived until it is back "
                    f"({self._alarm_watch.loss})",
                )
            case Exit(reason):
                self.end_with(FENCED, reason)
            case Stop(reason, verdict):
                if verdict is not None:
                    self._reports.tell_last(verdict)
                self.end_with(STOPPED, reason)
            case _:
                raise AssertionError(f"nobody does {action}")
        return ()


MOST = 30
"""Views in a row with the same members before the same iteration, after which there is no hope for the next one. What
comes of a busy machine or a bad cable has passed, or somebody has been declared dead."""


class Attempts:
    """Counts views in a row that ended with the members, and in the iteration, of the one before.

    What fails without anybody's death would do so for ever: a call that NCCL refuses, memory that is not there.
    """

    def __init__(self) -> None:
        self._last: tuple[int, tuple[Member, ...]] | None = None
        self._count = 0

    def note(self, view: View, step: int, cause: str) -> str:
        """A view has ended.

        Args:
            view: which.
            step: the iteration that was under way.
            cause: why.

        Returns:
            Why the run cannot go on; empty if it can.
        """
        this = step, view.members
        self._count = self._count + 1 if this == self._last else 1
        self._last = this
        if self._count < MOST:
            return ""
        return (
            f"iteration {step + 1} was begun {self._count} times by the same servers, and never made: {cause}; "
            "resume from a checkpoint when that is mended"
        )
