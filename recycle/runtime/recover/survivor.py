"""The survivor: a worker's life from its first view to its last, through every failure of others.

The training itself runs in the main thread; the alarm watch, a second thread, waits for the alarm of the present epoch
and frees the main thread from whatever it waits in.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress

import torch

from recycle.control.board.board import Board
from recycle.control.host.agent import LEFT
from recycle.control.host.heartbeats import Heartbeat
from recycle.control.membership.durations import Durations
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.machine import Machine
from recycle.control.membership.messages import Death, MoveOrder
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member
from recycle.holding import units, units_of
from recycle.job import Job, Server
from recycle.placement import Layout
from recycle.record.reporting import Reporter
from recycle.runtime.errors import NotFinite, ViewBroken
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.notices import Notices
from recycle.runtime.join.copying import has_copies
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.net.network import meet
from recycle.runtime.recover.admission import Admission, AdmissionPause
from recycle.runtime.recover.alarm_watch import AlarmWatch
from recycle.runtime.recover.gathering import Gathering
from recycle.runtime.recover.holdings import Holdings
from recycle.runtime.recover.link_watch import LinkWatch
from recycle.runtime.recover.moving import Moving
from recycle.runtime.recover.plans import Plans, ViewPlans
from recycle.runtime.recover.rebuilding import Groups, Rebuilding
from recycle.runtime.recover.recovery import Recovery
from recycle.runtime.recover.standstill import StandstillWatch
from recycle.runtime.recover.store_connection import StoreConnection
from recycle.runtime.recover.store_loss import StoreLoss
from recycle.runtime.recover.view_reports import ViewReports
from recycle.runtime.step.trainee import Trainee
from recycle.saying import say
from recycle.state.shards import HOLDERS
from recycle.wording import plural

# Seconds between two looks, at the end of training, whether somebody needs help to get there.
LOOK = 0.1

_LEAVES = 3
"""How often a server waits to leave with the same others. A bad cable may have broken two views of theirs."""

LEFT_TOO_SOON = 1
"""The exit status of a server that has left while the others train on: it has crashed."""


class Survivor:
    """Takes a training through failures.

    A training with a loop of its own calls ``begin``, ``recover`` for every error, ``leave`` at its end, and ``stop``;
    ``TrainingLoop`` does so for one without.

    Args:
        member: who this is.
        job: what is trained.
        trainee: the training.
        endpoint: where the run's store is.
        durations: how long is waited for what.
        plans: where plans come from.
        reporter: gets what happens.
        hooks: what looks on while instructions are executed.
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
        self._member = member
        self._trainee = trainee
        self._rank = rank = trainee.rank
        self._store = store = StoreConnection(endpoint, durations)
        self._gathering = Gathering(member, store, rank)
        holdings, view_plans = Holdings(member, trainee), ViewPlans(member, job, plans, store)
        self._reports = reports = ViewReports(member, reporter, trainee.iteration, lambda: holdings.last_death)
        self._standstill = still = StandstillWatch(
            rank.of(member.server), member.server, reports.tell_standstill, reports.warn
        )
        self._alarm_watch = watch = AlarmWatch(endpoint, durations, self._look_around, still.explain, rank.size)
        self._links = LinkWatch(
            Participant(member, rank),
            endpoint.address,
            lambda: self._recovery.view,
            lambda: self._recovery.job,
            reports.warn,
        )
        self._groups = Groups(member, store, watch, self._links, rank, trainee.transport)
        self._admission = Admission(member, trainee.followed, store, watch, rank, trainee.chunks)
        self._rebuilding = Rebuilding(
            member, self._groups, store, holdings, view_plans, trainee.connection, (*hooks, still, watch), reports
        )
        self._recovery = Recovery(
            Machine(member, job, rank, loads=trainee.durable is not None),
            self._gathering,
            self._rebuilding,
            view_plans,
            self._admission,
            holdings,
            watch,
            reports,
        )
        self._store_loss = StoreLoss(self._recovery, self._rebuilding, store, holdings, watch, reports)
        self._moving = Moving(member, job, plans.mover, reports.tell_move, self._chunk_size)
        self._plans = view_plans
        self._told_to_leave = ""
        self._heartbeat: Heartbeat | None = None
        self._left_in: list[tuple[Member, ...]] = []
        self._spoiled: set[int] = set()

    def keep_notes(self, notes: Mapping[str, bytes]) -> None:
        """Have what the first process told all others at the start put back if a stranger takes it away.

        Args:
            notes: by name.
        """
        self._alarm_watch.probe.notes = notes

    @property
    def end(self) -> int | None:
        """The exit status with which this process has to end; None as long as it can go on."""
        return self._recovery.end

    @property
    def step(self) -> int:
        """The iteration that is made next."""
        return self._recovery.step

    def begin(self) -> None:
        """Give signs of life, watch for alarms, and enter the first view with this member in it."""
        beat = self._store.durations.workers_beat
        self._heartbeat = Heartbeat(self._member, self._store.endpoint.token, beat, self._rank)
        with suppress(StoreLost):  # as is found out below
            self._links.begin(self._store.board)
        self._alarm_watch.start()
        self._recovery.enter()
        self._follow_view()

    def recover(self, error: ViewBroken) -> None:
        """Get from a view that cannot go on to the next one; ``end`` says whether there is one.

        Args:
            error: how that was noticed, by the thread that trains.
        """
        forget_frames(error)
        recovery, watch = self._recovery, self._alarm_watch
        self._standstill.end()
        broken = recovery.view.epoch
        self._reports.notice(watch.noticed)
        watch.halt()
        self._reports.cause = cause = watch.cause or str(error)
        if isinstance(error, NotFinite):
            self._judge(error)
        try:
            self._store_loss.look()
            if recovery.is_unprotected:
                self._store_loss.give_up(error)
            elif self.end is None and isinstance(error, AdmissionPause):
                self._plans.ready = self._moving.plan
                recovery.pause(self._wish)
            elif self.end is None:
                recovery.fail(cause)
        except StoreLost:
            self._store_loss.give_up(error)
        if self.end is None:
            self._reports.tell_abandoned(broken, recovery.step, self._trainee.connection.recorder)
        self._follow_view()

    def outwait(self, members: Iterable[Member]) -> None:
        """Wait until nothing of dead members runs any more: with one rank, the others of its server only end by and by.

        What no agent says within ``hang`` seconds, such as one of a lost host, is not waited for any longer.

        Raises:
            ViewBroken: somebody else is gone meanwhile.
        """
        self._gathering.outwait(members, self._alarm_watch.check)

    def during(self, what: str, *, writes: bool = False) -> AbstractContextManager[None]:
        """Within the block all servers do something together that is no iteration; see StandstillWatch."""
        return self._standstill.during(what, writes=writes)

    def leave(self) -> None:
        """Wait until all may leave: who is gone early cannot help the others to recover.

        Raises:
            ViewBroken: a server needs help.
            SystemExit: no server does, and yet the same others train on.
        """
        view, network = self._recovery.view, self._groups.network
        self._left_in.append(view.members)
        if self._left_in[-_LEAVES:] == [view.members] * _LEAVES:
            # They wait for this server, which does nothing more; without it they get on.
            say(f"the script of {self._member.server} has ended, and the others train on: it counts as dead")
            raise SystemExit(LEFT_TOO_SOON)
        self._rebuilding.notices.collect()
        if self._recovery.is_unprotected:
            meet(network)
            network.barrier()
            return
        try:
            end = self._store.board.end
            network.ranks.sum(torch.zeros(1))
            if self._rank.is_first:
                end.reach(view, self._member)
            while not end.wait(view, LOOK):
                self._alarm_watch.check()
            if self._rank.is_first:
                with suppress(StoreLost):  # its host may be the first to leave
                    end.linger(view, self._member)
        except StoreLost:
            meet(network)
            network.barrier()

    def tell_recovery(self) -> None:
        """Where the first iteration after a recovery was made, say what the way there took."""
        recovery = self._recovery
        self._reports.tell_recovery(recovery.view.epoch, recovery.step, self._trainee.connection.recorder)

    def stop(self) -> None:
        """Give no more signs of life, and watch no more."""
        self._admission.abort()
        self._alarm_watch.stop()
        if self._heartbeat is not None:
            self._heartbeat.stop()

    # For a training whose iterations are counted here.

    def advance(self) -> None:
        """An iteration is made; the first one after a recovery is told of."""
        self.tell_recovery()
        # Of the one before, it is known now that it was right.
        self._spoiled.discard(self._recovery.step - 1)
        self._recovery.step += 1
        with suppress(StoreLost):
            if self._moving.look() and (order := self._order) is not None:
                self._store.board.joining.order_move(order)

    def exchange_notices(self, *, unsaved: bool = False) -> Notices:
        """Between two iterations: look after the store, and say what all should know.

        Args:
            unsaved: whether a checkpoint is to be tried again.

        Returns:
            What all said.
        """
        notices = self._rebuilding.notices
        self._store_loss.look()
        self._told_to_leave = self._told_to_leave or self._alarm_watch.told_to_end
        asks = self._admission.is_asked_for or self._wish is not None
        notices.say = Notices(int(asks), int(self._recovery.is_unprotected), int(unsaved), self._leaving)
        return notices.heard

    def tell_to_leave(self, cause: str) -> None:
        """From a signal handler: this server is to leave at a boundary between iterations.

        Args:
            cause: why, in a word.
        """
        self._told_to_leave = cause
        # Also what is posted in the iteration under way: at its end, it would be heard an iteration later.
        self._rebuilding.add_leaving(self._leaving)

    @property
    def is_parting(self) -> bool:
        """Whether servers leave at this boundary; all know the same.

        That is when leaving was heard of for the second time: a cluster tells many at once, and none may be missed of
        those without whom a stage is empty. Where all servers leave, none can be.
        """
        notices = self._rebuilding.notices
        return bool(notices.heard.leaving) and notices.is_parting(self._held)

    @property
    def is_end(self) -> bool:
        """Whether servers leave without whom the run cannot go on; all know the same."""
        if not self.is_parting:
            return False
        heard, held = self._rebuilding.notices.heard, self._held
        return heard.unprotected > 0 or any(heard.leaving[unit] == held[unit] for unit in units(self._recovery.job))

    @property
    def takes_shards(self) -> bool:
        """Whether so many servers of a stage leave that a shard of its optimizer may go too; all know the same."""
        if self._trainee.shards is None or not self.is_parting:
            return False
        return max(self._rebuilding.notices.heard.leaving) >= HOLDERS

    def part(self, *, saved: bool = True) -> None:
        """Servers leave, and this may be one of them; all come here, before the same iteration.

        Args:
            saved: whether there is a checkpoint, where the run ends.

        Raises:
            AdmissionPause: it is not, or the run ends.
        """
        recovery = self._recovery
        if self.is_end:
            checkpoint = "with a checkpoint" if saved else "and their checkpoint could not be written"
            done = f"training has ended after {plural(recovery.step, 'iteration')}, {checkpoint}"
            recovery.stop = f"told to end: {done}; go on with --resume"
            raise AdmissionPause("the run ends")
        self._leave_view(self._told_to_leave if self._rebuilding.notices.said.leaving else "")

    def go_on_without(self, server: Server, cause: str) -> None:
        """A server leaves of which all know that it does; all come here, before the same iteration.

        Args:
            server: which.
            cause: why, in a word.

        Raises:
            AdmissionPause: it is another one than this.
        """
        self._leave_view(cause if server == self._member.server else "")

    def _leave_view(self, cause: str) -> None:
        """Leave, if there is a cause; the others tell of it with the next view."""
        if not cause:
            raise AdmissionPause("servers leave")
        board, epoch = self._store.board, self._recovery.view.epoch
        death = Death(str(self._member), f"leaves: {cause}", "itself", time.monotonic())
        board.failures.tell_deaths(epoch, board.failures.publish_death(death))
        # Who is slower may still read what this server has sent.
        board.verdicts.wait(epoch + 1, self._store.durations.answer)
        self._recovery.end = LEFT

    def serve(self) -> None:
        """Between two iterations: begin to serve a joiner that asks for it."""
        self._admission.serve(self._recovery.view, self._recovery.job)

    def _follow_view(self) -> None:
        """A view has begun, unless this process has to end."""
        verdict, plan = self._rebuilding.verdict, self._rebuilding.plan
        if self.end is None and verdict is not None and plan is not None:
            self._standstill.begin(verdict.epoch, plan)
            self._links.built()
            # Whom the end of the last view has kept from leaving need not wait for the second post of this one.
            self._rebuilding.notices.say = Notices(leaving=self._leaving)
            self._moving.begin(verdict, plan)

    def _look_around(self, board: Board) -> None:
        """While there is no alarm, from the thread that waits for one."""
        self._standstill.look(board)
        self._links.look(board)
        self._gathering.tidy(board)

    @property
    def _leaving(self) -> tuple[int, ...]:
        """What this server holds, as notices say it, if it was told to leave."""
        if not self._told_to_leave:
            return ()
        job = self._recovery.job
        mine = units_of(job, self._member.server)
        return tuple(int(unit in mine) for unit in units(job))

    @property
    def _held(self) -> tuple[int, ...]:
        """What all servers of the view hold, as notices say it."""
        job, held = self._recovery.job, [units_of(self._recovery.job, each) for each in self._recovery.view.servers]
        return tuple(sum(unit in mine for mine in held) for unit in units(job))

    @property
    def _order(self) -> MoveOrder | None:
        """For copies, if this member leads and has found better places for the chunks."""
        layout = self._moving.layout
        return None if layout is None else MoveOrder(self._recovery.view.epoch, layout)

    @property
    def _wish(self) -> Layout | None:
        """Who is to hold what in the next view, if this member leads, and everybody has got its copies."""
        recovery, order = self._recovery, self._order
        if order is None or not has_copies(recovery.job, order, recovery.view, self._alarm_watch.copied):
            return None
        return order.layout

    def _chunk_size(self) -> int:
        """Bytes of a chunk with its optimizer's state: the mean of those here."""
        chunks = self._trainee.chunks
        assert chunks is not None, "nothing moves where servers hold alike"
        sizes = [sum(each.nbytes for each in chunks.part(chunk).values()) for chunk in chunks.held]
        return sum(sizes) // len(sizes)

    def _judge(self, error: NotFinite) -> None:
        """A value that is not finite may have come from a broken machine; if it comes again, it is the training's."""
        step = self._recovery.step
        if step in self._spoiled:
            self._recovery.stop = (
                f"iteration {step + 1}: {error}, also when it was made again; start a new run with a smaller "
                "learning_rate, or with clip"
            )
        self._spoiled.add(step)


def forget_frames(error: BaseException | None) -> None:
    """Let go of what an error's frames hold.

    What is still received there would be written to parameters that are restored next. And the last to let go of a
    group waits for what is under way in it.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
