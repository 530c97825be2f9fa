"""The survivor: a worker's life from its first view to its last, through every failure of others.

It carries out what the membership machine decides. The training itself runs in the main thread; the alarm watch, a
second thread, waits for the alarm of the present epoch and frees the main thread from whatever it waits in.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta

import msgspec
from torch.distributed import Store

from recycle.control.agent import FENCED, STOPPED
from recycle.control.beats import Heartbeat
from recycle.control.board import Board
from recycle.control.durations import Durations
from recycle.control.errors import StoreLost
from recycle.control.events import (
    Accuse,
    Action,
    BuildFailed,
    Built,
    Decided,
    Died,
    Event,
    Exit,
    Halted,
    JoinReady,
    Noticed,
    Overdue,
    Paused,
    Prepare,
    Propose,
    PublishReport,
    RaiseAlarm,
    Rebuild,
    Reported,
    Resume,
    SaveCheckpoint,
    Stop,
    StoreBack,
    StoreGone,
    Unblock,
    WaitForJoiners,
    WarnUnprotected,
)
from recycle.control.machine import Machine, State
from recycle.control.messages import NOTHING, Death, Report, Verdict
from recycle.control.view import Member, View
from recycle.errors import UserError
from recycle.job import DeadServers, Job
from recycle.plan.plan import Plan
from recycle.record.reporting import Reporter
from recycle.runtime.errors import NotFinite, ViewBroken
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.notices import NoticeExchange, Notices
from recycle.runtime.join.following import Joining
from recycle.runtime.join.serving import Serving
from recycle.runtime.net.connect import connect
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.net.network import Network, NetworkOptions
from recycle.runtime.recover.alarm_watch import AlarmWatch
from recycle.runtime.recover.plans import Plans
from recycle.runtime.recover.restore import find_holders, restore_state
from recycle.runtime.recover.view_reports import ViewReports
from recycle.runtime.step.trainee import Loop, Trainee

DONE = 0
"""The exit status of a worker whose training is done."""

LOOK = 0.001


class Survivor:
    """Trains through failures.

    Args:
        member: who this is.
        job: what is trained.
        trainee: the training.
        endpoint: where the run's store is.
        durations: how long is waited for what.
        plans: where plans come from.
        reporter: gets what happens.
        hooks: what looks on while instructions are executed.

    Attributes:
        end: the exit status with which this process has to end; None as long as it can go on.
    """

    def __init__(
        self,
        member: Member,
        job: Job,
        trainee: Trainee,
        endpoint: Endpoint,
        durations: Durations,
        plans: Plans,
        reporter: Reporter,
        hooks: Sequence[Hooks] = (),
    ) -> None:
        self.member = member
        self._job = job
        self._trainee = trainee
        self._endpoint = endpoint
        self._durations = durations
        self._plans = plans
        self._fresh = member.incarnation > 0
        self._machine = Machine(member, job)
        self._store = endpoint.connect()
        self._board = Board(self._store, endpoint.token)
        self._alarm_watch = AlarmWatch(endpoint, durations)
        followed = trainee.followed
        self._serving = None if followed is None else Serving(member, followed, endpoint, durations)
        self._joining = None if followed is None else Joining(member, followed, endpoint, durations)
        self._hooks = (*hooks, self._alarm_watch)
        self._ids = (f"{member}/{number}" for number in itertools.count())
        self._network: Network | None = None
        self._notices: NoticeExchange | None = None
        self._plan: Plan | None = None
        self._verdict: Verdict | None = None
        self._view_reports = ViewReports(member, reporter)
        self._cause = "the run begins"
        self._spoiled: set[int] = set()
        self._stop = ""
        self._heard: set[str] = set()
        self._step = 0
        self.end: int | None = None
        self._heartbeat: Heartbeat | None = None
        self._saved_unprotected = False

    def run(self, loop: Loop) -> int:
        """Train until the end, or until this process has to end; gives its exit status.

        Args:
            loop: the training, iteration by iteration.
        """
        try:
            self.begin()
            while self.end is None:
                try:
                    self._train(loop)
                    self.end = DONE
                except ViewBroken as error:
                    self.recover(error)
            return self.end
        finally:
            self.stop()

    # The parts of a life, for a training that has a loop of its own.

    def begin(self) -> None:
        """Give signs of life, look out for alarms, and enter the first view with this member in it."""
        endpoint, durations = self._endpoint, self._durations
        self._heartbeat = Heartbeat(
            self.member, endpoint.connect, endpoint.token, durations.beat, self._alarm_watch.look_for_joiners
        )
        self._alarm_watch.start()
        self._enter()

    def recover(self, error: ViewBroken) -> None:
        """Get from a view that cannot go on to the next one; ``end`` says whether there is one.

        Args:
            error: how that was noticed, by the thread that trains.
        """
        _forget_frames(error)
        try:
            self._recover(error)
        except StoreLost:
            self._give_up(error)

    def stop(self) -> None:
        """Give no more signs of life, and look out no more."""
        self._stop_serving()
        self._alarm_watch.stop()
        if self._heartbeat is not None:
            self._heartbeat.stop()

    def _stop_serving(self) -> None:
        if self._serving is not None:
            self._serving.abort()

    # Training, and what comes between two iterations.

    def _train(self, loop: Loop) -> None:
        loop.between(self._step, save=False, settle=False)
        while self._step < loop.last:
            loop.iterate(self._step)
            self._step += 1
            self._view_reports.tell_recovery(self._view.epoch, self._step - 1, self._trainee.connection.recorder)
            self._at_boundary(loop)
        self.leave()

    def _at_boundary(self, loop: Loop) -> None:
        assert self._notices is not None
        alarm_watch = self._alarm_watch
        if alarm_watch.store_lost and self._machine.state is State.TRAINING:
            self._tell_machine(StoreGone(next(self._ids)))
        if not alarm_watch.store_lost and self._machine.state is State.UNPROTECTED:
            self._protect_again()
        heard = self._notices.heard
        waiting = any(each.state == "synced" for each in alarm_watch.requests)
        self._notices.say = Notices(int(waiting), int(self._machine.state is State.UNPROTECTED))
        save = heard.unprotected > 0 and not self._saved_unprotected
        self._saved_unprotected = heard.unprotected > 0
        admits = heard.admit > 0 and heard.unprotected == 0
        loop.between(self._step, save=save, settle=admits)
        if self._step == loop.last:
            return
        if admits:
            raise _Admission("new servers are admitted")
        if self._serving is not None:
            self._serving.look(self._view, alarm_watch.requests)

    def leave(self) -> None:
        """Wait until all may leave: who is gone early cannot help the others to recover.

        Raises:
            ViewBroken: somebody needs help.
        """
        assert self._network is not None
        assert self._notices is not None
        self._notices.collect()
        if self._machine.state is State.UNPROTECTED:
            self._network.barrier()
            return
        try:
            self._board.finish(self._view.epoch, self.member)
            while not self._are_others_finished():
                self._alarm_watch.check()
                time.sleep(5 * LOOK)
        except StoreLost:
            self._network.barrier()

    def _are_others_finished(self) -> bool:
        """Whether nobody in this view has to be helped any more, so that who is finished leaves or has left already."""
        view = self._view
        return self._board.need_nobody(view.epoch, (each for each in view.members if each != self.member))

    # The way from one view to the next.

    def _enter(self) -> None:
        """Wait for the first view with this member in it, and enter it."""
        while self._machine.state is State.JOINING and self.end is None:
            try:
                self._join()
            except StoreLost:
                self._end_with(STOPPED, "the store was lost before this server was in a view: join again")
        self._gather()

    def _recover(self, error: ViewBroken) -> None:
        self._view_reports.notice(self._alarm_watch.noticed)
        self._alarm_watch.halt()
        epoch = self._view.epoch
        self._cause = self._alarm_watch.cause or str(error)
        if isinstance(error, NotFinite):
            if self._step in self._spoiled:
                self._stop = f"iteration {self._step}: {error}, also when it was made again; resume from a checkpoint "
                self._stop += "with a smaller learning_rate, or set clip"
            self._spoiled.add(self._step)
        if self._machine.state is State.UNPROTECTED:
            self._give_up(error)
            return
        if isinstance(error, _Admission):
            if self._serving is not None:
                self._serving.finish()
            self._tell_machine(Paused(next(self._ids), epoch, self._step))
            if self._machine.leader == self.member:
                self._await_joiners(epoch)
        else:
            self._stop_serving()
            self._tell_machine(Noticed(next(self._ids), epoch, self._cause))
        self._halt()
        self._gather()

    def _halt(self) -> None:
        versions = self._trainee.versions
        self._alarm_watch.halt()
        versions.drop()
        newest, oldest = (NOTHING, NOTHING) if self._fresh else (versions.newest, versions.oldest)
        halted = Halted(next(self._ids), self._view.epoch, newest, oldest, self._durable, self._stop)
        self._tell_machine(halted)

    def _gather(self) -> None:
        """Until training goes on or this process ends: look what the others say, and do what the machine wants."""
        machine = self._machine
        began = time.monotonic()
        epoch = machine.view.epoch
        self._heard.clear()
        while self.end is None and machine.state is not State.TRAINING:
            if machine.view.epoch != epoch:
                epoch, began = machine.view.epoch, time.monotonic()
                self._heard.clear()
            if machine.state is State.HALTING:
                self._halt()
                continue
            try:
                if self._trainee.connection.done and self._are_others_finished():
                    # Somebody died at the very end; those who saw it before the alarm do not take part in a recovery.
                    self.end = DONE
                    return
                self._look(epoch, time.monotonic() - began > self._durations.answer)
            except StoreLost:
                self._end_with(STOPPED, "the store was lost during a recovery: resume from the last checkpoint")

    def _look(self, epoch: int, overdue: bool) -> None:
        machine, board = self._machine, self._board
        leads = machine.leader == self.member
        verdict = board.verdict(epoch + 1) if leads else board.wait_verdict(epoch + 1, 20 * LOOK)
        if verdict is not None:
            self._tell_machine(Decided(next(self._ids), verdict))
            return
        dead = board.declared_dead()
        reported = board.reported(epoch) if leads or overdue else frozenset()
        if leads:
            # Before the members, with whose last report everything is decided.
            for joiner, report in self._ready_joiners(epoch):
                if report is not None:
                    self._tell_machine(JoinReady(f"join/{epoch}/{joiner}", report))
        for member in machine.view.members:
            name = str(member)
            if name in dead:
                if self._is_news(death_id := f"death/{name}") and (death := board.death(member)) is not None:
                    self._tell_machine(Died(death_id, death))
            elif name in reported:
                if self._is_news(report_id := f"report/{epoch}/{name}") and (report := board.report(epoch, member)):
                    self._tell_machine(Reported(report_id, report))
            elif overdue and member != self.member:
                self._tell_machine(Overdue(next(self._ids), epoch, member))
            if machine.view.epoch != epoch or self.end is not None:
                return
        if leads:
            time.sleep(LOOK)

    def _is_news(self, name: str) -> bool:
        """Whether this epoch's machine has not been told yet."""
        known = name in self._heard
        self._heard.add(name)
        return not known

    # What the machine wants done.

    def _tell_machine(self, event: Event) -> None:
        for action in self._machine.handle(event):
            self._perform(action)
        self._machine.log.clear()

    def _perform(self, action: Action) -> None:
        match action:
            case RaiseAlarm(epoch, cause):
                self._cause = self._board.alarm(epoch, cause, str(self.member)).cause
            case Unblock():
                pass  # the main thread waits for nothing here; whoever else does is freed by its own alarm_watch
            case PublishReport(report):
                self._board.publish_report(report)
            case Propose(verdict):
                self._propose(verdict)
            case Accuse(member):
                reason = f"did not answer an alarm for {self._durations.answer:g} s"
                self._board.publish_death(Death(str(member), reason, "answer", time.monotonic()))
            case Rebuild(view, step, restore):
                self._rebuild(view, step, restore)
            case Resume(_, step):
                self._step = step
            case Prepare(view):
                self._prepare(view)
            case WaitForJoiners(stages):
                names = ", ".join(map(str, stages))
                self._view_reports.warn(
                    f"no live server of stage {names} is left: waiting for a replacement (recycle join)"
                )
            case WarnUnprotected():
                self._view_reports.warn(
                    "the store is lost: training goes on, but no failure can be survived until it is back"
                )
            case SaveCheckpoint():
                pass  # every server hears of it in the next reduction
            case Exit(reason):
                self._end_with(FENCED, reason)
            case Stop(reason):
                self._end_with(STOPPED, reason)
            case _:
                raise AssertionError(f"nobody does {action}")

    def _propose(self, verdict: Verdict) -> None:
        if not verdict.stop:
            try:
                choice, text = self._plans.choose(self._failed(verdict.view))
            except UserError as error:
                verdict = msgspec.structs.replace(verdict, stop=str(error))
            else:
                if text:
                    self._board.publish_plan(verdict.epoch, self.member, text)
                    choice = f"{choice} by {self.member}"
                verdict = msgspec.structs.replace(verdict, plan=choice)
        stored = self._board.propose(verdict)
        self._tell_machine(Decided(next(self._ids), stored))

    def _rebuild(self, view: View, step: int, restore: str) -> None:
        self._view_reports.times.agreed = time.monotonic()
        self._stop_serving()
        self._alarm_watch.follow(view.epoch)
        self._alarm_watch.bury(self._network)
        self._network = None
        verdict = self._board.verdict(view.epoch)
        assert verdict is not None
        assert verdict.epoch == view.epoch, f"epoch {view.epoch} is over already"
        self._view_reports.decide(verdict)
        try:
            holders = find_holders(self._board, view, self.member.server.stage, step)
            text = b""
            choice, _, author = verdict.plan.partition(" by ")
            if author:
                text = self._board.plan(view.epoch, Member.parse(author)) or b""
            server = self.member.server
            options = NetworkOptions(
                timedelta(seconds=self._durations.transfer),
                timedelta(seconds=self._durations.rebuild),
                self._endpoint.address,
                [self._endpoint.port],
            )
            network = connect(self._meeting(), view, server, options, check=self._alarm_watch.check)
            self._network = network
            self._alarm_watch.follow(view.epoch, network)
            self._alarm_watch.check()
            self._view_reports.times.rebuilt = time.monotonic()
            restore_state(self._trainee, self.member, network, step, restore, holders)
            self._fresh = False
            self._plan = self._plans.find(choice, self._failed(view), server, text)
            self._notices = NoticeExchange(network)
            self._trainee.connection.connect(self._plan, network, self._hooks, self._notices)
            self._alarm_watch.check()
        except ViewBroken as error:
            self._cause = str(error)
            self._tell_machine(BuildFailed(next(self._ids), view.epoch, str(error)))
            return
        self._view_reports.times.restored = time.monotonic()
        self._verdict = verdict
        self._alarm_watch.end_buried()
        self._view_reports.tell_view(self._plan, self._cause)
        dead = self._board.declared_dead()
        for member in view.members:
            # Who proposed the view may not have heard of a death that came at the same moment.
            if str(member) in dead and (death := self._board.death(member)) is not None:
                self._tell_machine(Died(f"death/{member}", death))
        self._tell_machine(Built(next(self._ids), view.epoch))
        if self._machine.leader == self.member:
            self._tidy(view)

    def _meeting(self) -> Store:
        """Where groups are built: torch's own store, waiting for nobody longer than a rebuild may take."""
        store = self._store.torch_store
        store.set_timeout(timedelta(seconds=self._durations.rebuild))
        return store

    def _tidy(self, view: View) -> None:
        """Delete what nobody needs any more. All members have built their groups, so all have read it."""
        joiners = (Member.parse(each.member) for each in self._board.joins())
        waiting = (each for each in joiners if self._board.death(each) is None)
        self._board.forget(view.epoch, {*view.members, *waiting})

    # Joining.

    def _join(self) -> None:
        """Wait for a verdict; in the view of the run, get the state first, and say what came of it."""
        joining, epoch = self._joining, self._machine.view.epoch
        if joining is None or epoch < 0 or joining.ready:
            verdict = self._board.wait_verdict(epoch + 1, self._durations.beat)
        else:
            if joining.wait(self._board):
                self._fresh = not joining.arrived
                self._halt()
            verdict = self._board.verdict(epoch + 1)
        if verdict is not None:
            if joining is not None:
                joining.stop()
            self._tell_machine(Decided(next(self._ids), verdict))

    def _prepare(self, view: View) -> None:
        self._fresh = True
        if self._joining is None:
            self._end_with(FENCED, f"{self.member} is not in the view of epoch {view.epoch}, and cannot join it")
        else:
            self._joining.begin(view, self._board)

    def _await_joiners(self, epoch: int) -> None:
        """Before this member, which leads, says that it has halted: who is let in has to say what it holds."""
        deadline = time.monotonic() + self._durations.silence
        missing = True
        while missing and time.monotonic() < deadline and not self._alarm_watch.noticed:
            missing = False
            for joiner, report in self._ready_joiners(epoch):
                if report is not None:
                    self._tell_machine(JoinReady(f"join/{epoch}/{joiner}", report))
                else:
                    missing = True
            time.sleep(LOOK)

    def _ready_joiners(self, epoch: int) -> Iterator[tuple[Member, Report | None]]:
        """Those who are ready to be let in, and what they report."""
        for request in self._board.joins():
            joiner = Member.parse(request.member)
            if (request.state, request.epoch) == ("synced", epoch) and self._board.death(joiner) is None:
                yield joiner, self._board.report(epoch, joiner)

    # The loss of the store.

    def _protect_again(self) -> None:
        assert self._verdict is not None
        with suppress(StoreLost):
            self._store = self._endpoint.connect(self._durations.silence)
            self._board = Board(self._store, self._endpoint.token)
            stored = self._board.propose(self._verdict)
            self._tell_machine(StoreBack(next(self._ids), stored))
            self._view_reports.warn("the store is back: failures can be survived again")

    def _give_up(self, error: ViewBroken) -> None:
        durable = self._durable
        remedy = "there is no checkpoint" if durable is None else f"go on from step {durable} with --resume"
        self._end_with(STOPPED, f"a server failed ({error}) while the store was lost: {remedy}")

    def _end_with(self, status: int, reason: str) -> None:
        self.end = status
        self._view_reports.end(reason)

    @property
    def _durable(self) -> int | None:
        """The newest step of which there is a checkpoint, where training makes its own."""
        return None if self._trainee.durable is None else self._trainee.durable.durable()

    @property
    def _view(self) -> View:
        return self._machine.view

    def _failed(self, view: View) -> DeadServers:
        return self._job.dead_servers(set(self._job.servers()) - set(view.servers))


def _forget_frames(error: BaseException | None) -> None:
    """Let go of what an error's frames hold: the last to let go of a group waits for what is under way in it."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


class _Admission(ViewBroken):
    """Nothing is broken: all halt at a boundary, so that others can come in."""
