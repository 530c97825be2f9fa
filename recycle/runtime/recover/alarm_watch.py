"""The alarm watch: a thread that waits for the alarm, and frees the main thread from whatever it waits in."""

import os
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from recycle.control.board.board import Board
from recycle.control.host.heartbeats import Watchlist
from recycle.control.membership.durations import Durations
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.messages import Alarm, JoinRequest, MoveOrder
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member
from recycle.plan.instruction import Instruction
from recycle.runtime.errors import Interrupted
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.net.gloo.sockets import cut_vanished
from recycle.runtime.net.network import Network
from recycle.runtime.recover.store_connection import StoreProbe
from recycle.threads import NoneLeft, run_apart, start_thread

# Seconds until a thread that is still not free is freed again.
AGAIN = 0.05

# Beats for which one wait lasts while nobody asks to be let in.
CALM = 4

# After how many of these waits it is looked for an alarm to which nobody has called. Who speaks for a host looks for it
# all the time, and calls in the place of who could not.
RARELY = 32


class AlarmWatch:
    """Waits for the alarm in a thread of its own, over a connection of its own, and sees to what else can wait.

    It is a hook of the executor: an alarm ends a list at its next instruction, where the ranks of this server do not
    stop together.

    Args:
        endpoint: where the store is.
        durations: how long is waited for what.
        tidy: called again and again while there is no alarm; what it does delays the next one.
        explain: called with the cause of an alarm before the main thread is freed; whether that is in no iteration.
        ranks: of a server.

    Attributes:
        noticed: when the alarm of the present epoch was seen, on the monotonic clock in seconds; 0 if it was not.
        cause: of that alarm.
        loss: why the store could not be used, until the main thread takes note of it; None where it always could.
        reaches: whether the store can be used now.
        probe: finds that out.
        requests: that were made in the present epoch by those who are alive, for places that are vacant.
        order: for copies of chunks in the present epoch; None for none.
        copied: what members have said of their copies in that epoch.
        told_to_end: why all members are to end; empty as long as they are not.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        durations: Durations,
        tidy: Callable[[Board], None],
        explain: Callable[[str], bool],
        ranks: int = 1,
    ) -> None:
        self.noticed = 0.0
        self.cause = ""
        self.loss: StoreLost | None = None
        self.reaches = False
        self.probe = StoreProbe(durations.rare_look)
        self.requests: tuple[JoinRequest, ...] = ()
        self.order: MoveOrder | None = None
        self.copied: tuple[JoinRequest, ...] = ()
        self.told_to_end = ""
        self._endpoint = endpoint
        self._durations = durations
        self._tidy = tidy
        self._explain = explain
        self._ranks = ranks
        self._changed = threading.Condition()
        self._epoch = -1
        self._network: Network | None = None
        self._discarded: list[Network] = []
        self._joins: tuple[JoinRequest, ...] = ()
        self._asked = (-1, 0)
        # In which epoch somebody has called who did not raise an alarm.
        self._visited = -1
        self._joiners = Watchlist[Member](durations.silence)
        # Whether the others were called to what was seen last.
        self._called = False
        self._halted = False
        self._stopped = False

    def start(self) -> None:
        """Begin to watch."""
        start_thread(self._watch, "alarm watch")

    def stop(self) -> None:
        """Stop watching; the process is about to end, so the thread is not waited for."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def follow(self, epoch: int, network: Network | None = None) -> None:
        """Watch an epoch from now on.

        Args:
            epoch: which.
            network: what to free the main thread from; None while there is none yet.
        """
        with self._changed:
            if epoch != self._epoch:
                self._epoch = epoch
                self.noticed, self.cause, self._halted = 0.0, "", False
                self.requests = self.copied = ()
                self.order = None
            self._network = network
            self._changed.notify_all()

    def discard(self, network: Network | None) -> None:
        """Take a network that is of no use any more; its end takes its time, and the main thread has none."""
        if network is not None:
            self._discarded.append(network)

    def end_discarded(self) -> None:
        """End them, now that nobody else has them."""
        discarded, self._discarded = self._discarded, []
        run_apart(discarded.clear, "end of groups")

    def halt(self) -> None:
        """The main thread has left the iteration, and waits for nothing in its groups."""
        with self._changed:
            self._halted = True
            self._changed.notify_all()

    def _is_halted(self, epoch: int) -> bool:
        return self._halted or self._stopped or epoch != self._epoch

    def check(self) -> None:
        """Raise if there is an alarm.

        Raises:
            Interrupted: there is.
        """
        if self.noticed:
            raise Interrupted(self.cause)

    def heard(self, epoch: int) -> str:
        """Why an epoch is over, if an alarm says so to which all are called; empty otherwise."""
        with self._changed:
            return self.cause if self.noticed and self._called and epoch == self._epoch else ""

    def before(self, _: int, __: Instruction) -> None:
        """See Hooks."""
        if self._network is None or not self._network.line.is_open:
            self.check()

    def after(self, _: int, __: Instruction, ___: Callable[[], float]) -> None:
        """See Hooks."""

    def _look_for_joiners(self, board: Board, epoch: int) -> None:
        order = self.order or board.joining.move(epoch)
        asked, read = self._asked
        known, joins = asked == epoch and board.joining.asked(epoch, read) == read, self._joins
        if known and not joins:
            with self._changed:
                self.order = order if epoch == self._epoch else None
            return
        if not known:
            read, joins = board.joining.read_requests(epoch)
            self._asked = (epoch, read)
        self._joins = tuple(each for each in joins if board.failures.death(Member.parse(each.member)) is None)
        network = self._network
        taken = network.view.servers if network is not None else ()
        members = dict.fromkeys(Member.parse(each.member) for each in self._joins)
        joiners = [each for each in members if each.server not in taken]
        # Nobody is told by a joiner's agent that it died with its worker.
        silent = self._joiners.observe(time.monotonic(), board.beats.counts(joiners, self._ranks))
        awaited = {str(each) for each in joiners if each not in silent}
        with self._changed:
            if epoch == self._epoch:
                self.order = order
                self.copied = tuple(each for each in self._joins if each.chunk is not None)
                self.requests = tuple(each for each in self._joins if each.member in awaited)

    def _watch(self) -> None:
        try:
            self._keep_watching()
        except BaseException:
            # Nobody else would free the main thread from a view that is over, so its agent has to report this process.
            traceback.print_exc()
            os._exit(1)

    def _keep_watching(self) -> None:
        board: Board | None = None
        while not self._stopped:
            try:
                if board is None:
                    board = self._endpoint.board(self._durations.silence)
                    self.probe.require(board)
                    # It may be another store, where nothing is known of what was read before.
                    self._asked, self._joins, self._visited = (-1, 0), (), -1
                    self.reaches = True
                self.probe.look(board)
                self._look(board)
            except StoreLost as error:
                board, self.reaches = None, False
                self.loss = error
                # No member can be declared dead now, so a wait for a host that was lost as well has to fail by itself.
                cut_vanished()
                time.sleep(self._durations.beat)

    def _await_alarm(self, board: Board, epoch: int) -> Alarm | None:
        failures, beat = board.failures, self._durations.beat
        if epoch == self._visited:
            # An epoch ends without an alarm only to let joiners in; then this wait has to end by itself, and soon.
            self._called = True
            return failures.wait_alarm(epoch, beat)
        # The workers of a host look at the same moment, so that their relay can ask for all of them at once.
        turn = CALM * beat
        left = turn - time.monotonic() % turn
        called, alarm = failures.wait_call(epoch, left if left > beat else left + turn)
        if alarm is None and (called or round(time.monotonic() / turn) % RARELY == 0):
            alarm = failures.alarm(epoch)
        if called and alarm is None:
            self._visited = epoch
        self._called = called
        return alarm

    def _alarm_of_a_later_epoch(self, board: Board, epoch: int) -> Alarm | None:
        """An alarm if the others go on without this server.

        While it could not reach the store, they may have raised theirs, and tidied it away.
        """
        if self.probe.epoch <= epoch:
            return None
        with self._changed:
            # A joiner has no network, and is in no view yet.
            network = self._network if epoch == self._epoch else None
        newest = None if network is None else board.verdicts.newest(epoch + 1)
        if network is None or newest is None or newest.view.names(network.view.member(network.server)):
            return None
        return Alarm(epoch, "the store", f"the others have gone on without {network.server}")

    def _look(self, board: Board) -> None:
        with self._changed:
            epoch = self._epoch
            if self.noticed or epoch < 0:
                self._changed.wait(self._durations.beat)
                return
        alarm = self._await_alarm(board, epoch) or self._alarm_of_a_later_epoch(board, epoch)
        if alarm is None:
            if epoch == self._visited:
                self.told_to_end = self.told_to_end or board.end.called_off()
                self._look_for_joiners(board, epoch)
            self._tidy(board)
            return
        with self._changed:
            if epoch != self._epoch:
                return
            self.cause = alarm.cause
            self.noticed = time.monotonic()
        between = self._explain(alarm.cause)
        halted, closed = False, False
        while not halted:
            with self._changed:
                # There may be none yet, and then the main thread may wait in the next one.
                network = self._network if epoch == self._epoch else None
            if network is not None:
                # An abort waits for the device, and that for what other ranks begin when they know where to stop.
                # Where there is no thread for it, there may be one the next time.
                with suppress(NoneLeft):
                    start_thread(network.unblock, "giving up", 0)
                if between:
                    board.failures.tell_between(epoch, network.view.member(network.server))
                    between = False
                closed = closed or self._close(board, epoch, network)
            with self._changed:
                if network is None:
                    self._changed.wait_for(lambda: self._is_halted(epoch) or self._network is not None, AGAIN)
                elif closed:
                    self._changed.wait_for(lambda: self._is_halted(epoch), AGAIN)
                halted = self._is_halted(epoch)

    def _close(self, board: Board, epoch: int, network: Network) -> bool:
        """Have the ranks of this server stop together, if all of them live; whether that is settled."""
        place, rank = network.line.close(), network.rank
        if place is None:
            return True
        failures, member = board.failures, network.view.member(network.server)
        own, ranks = Participant(member, rank), Participant.all_of(member, rank.size)
        try:
            failures.tell_stop(epoch, own, place)
            places = [place, *(failures.wait_stop(epoch, each, AGAIN) for each in ranks if each != own)]
        except StoreLost:
            network.line.give_up()
            raise
        known = [each for each in places if each is not None]
        if len(known) == rank.size:
            network.line.stop_at(max(known))
        elif board.verdicts.newest(epoch + 1) is not None or failures.death(member) is not None:
            # The server is dead with one of its ranks, which says nothing. Once there is a view that has heard of the
            # death, the store does not tell it.
            network.line.give_up()
        else:
            return False
        return True
