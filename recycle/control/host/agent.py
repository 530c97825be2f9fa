"""The agent: a process that starts one worker, watches it, and reports its death at once.

One agent of each host also speaks for the host.
"""

import ctypes
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

from recycle.control.board.board import Board
from recycle.control.host.children import fork_below, ignore_signals, process_state
from recycle.control.host.direct_heartbeats import DirectHeartbeats, DirectHeartbeatSocket
from recycle.control.host.heartbeat_leader import HeartbeatLeader
from recycle.control.host.lifeline import Lifeline, exit_status
from recycle.control.host.signs import HostSocket, host_name, sign_of_agent
from recycle.control.membership.durations import Durations
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.messages import Death
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import SOLE, Member, ServerRank
from recycle.control.store.store import Store
from recycle.saying import say
from recycle.threads import NoneLeft

DONE = 0
"""The exit status of a worker whose training is done."""

FENCED = 75
"""The exit status of a worker that has left the run because the others go on without it."""

STOPPED = 74
"""The exit status of a worker that ended because the run cannot go on."""

LEFT = 73
"""The exit status of a worker that was told to leave, and has told the others."""

CUT_SHORT = 72
"""The exit status of a worker that something has ended with one of these statuses, before it could say so itself."""

GOOD = (DONE, LEFT)
"""The exit statuses of a worker that has ended as it should."""

NO_EPOCH = -2
"""Of who was never seen in a view; the view in which a run starts has -1."""

AT_ONCE = 0.02
"""Seconds after the limit of a host's silence, until it is looked once more."""

_FIRST, _MOST_FIRST = 500, 1000
"""By how many thousandths of all memory a worker counts as larger than it is, and the most that the kernel takes."""

_SET_CHILD_SUBREAPER = 36


class HostAccess(NamedTuple):
    """How the agent that speaks for a host is reached.

    Attributes:
        address: of this machine, where other hosts hail that agent.
        relay: what the process runs beside that agent through which the host's members ask a store whose every request
            takes a majority; None where they ask the store themselves.
    """

    address: str
    relay: Callable[[], None] | None = None


def run_agent(
    member: Member,
    body: Callable[[], int],
    connect: Callable[[], Store],
    token: str,
    durations: Durations,
    began: Callable[[int], None] = lambda _: None,
    rank: ServerRank = SOLE,
    access: HostAccess | None = None,
) -> int:
    """Run a worker in a process of its own, and tell the others as soon as it is dead.

    The worker dies with its agent. What it has started and left behind dies with it, too: that would hold the standard
    output, and might still write what the others write again. It outlives a worker that has ended as it should. A
    worker that was declared dead and does not leave, because it is stopped, is killed; so is one that was started again
    and is not let in before the end of the run. The calling process must have no other threads, because it forks. While
    the store is away the agent goes on watching its worker, and tries to connect again.

    Args:
        member: which member the worker is.
        body: what the worker runs; gives its exit status, 0 for a run that has ended as it should.
        connect: makes a connection to the store, or raises StoreLost.
        token: the run's.
        durations: how often to look, and after which silence another member is dead.
        began: called with the worker's process once it is there.
        rank: of the server that the worker is; its death is the server's.
        access: how the agent is reached that speaks for the host; None where there is one host.

    Raises:
        NoneLeft: the system gives no process for the worker.

    Returns:
        The worker's exit status, or minus the number of the signal that killed it; where the run has ended without it,
        that of those who came to its end.
    """
    lifeline = Lifeline()
    others = _adopted()
    worker = fork_below(partial(_work, body, lifeline))
    began(worker)
    agent = _Agent(Participant(member, rank), connect, token, durations, access)
    exited = os.pidfd_open(worker)
    ends = [exited]
    while not agent.wait(ends):
        agent.look_around()
        if agent.is_outlived(worker) or agent.is_late():
            os.kill(worker, signal.SIGKILL)
        if len(ends) == 1 and lifeline.is_held:
            # Without it, the death is noticed when the worker has been taken apart.
            with suppress(NoneLeft):
                ends.append(lifeline.watch())
    status = exit_status(worker)
    if status is not None:
        status = agent.judge(_meant(status, lifeline))
        agent.report_worker(status)
    # While the worker is taken apart, which may take long, somebody else speaks for the host.
    agent.leave()
    own = _meant(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]), lifeline)
    final = agent.judge(own)
    if final != status:
        agent.report_worker(final)
    agent.end_relay()
    if own not in GOOD:
        _end_children(others)
    agent.report_gone(final)
    for end in ends:
        os.close(end)
    return final


def _work(body: Callable[[], int], lifeline: Lifeline) -> int:
    with _traced():
        _be_first_for_want_of_memory()
        lifeline.hold()
        status = body()
        lifeline.finish()
        return status


def _be_first_for_want_of_memory() -> None:
    """Have the kernel end this process before its agent and a keeper, of which none takes the place."""
    score = Path("/proc/self/oom_score_adj")
    with suppress(OSError):
        score.write_text(str(min(int(score.read_text()) + _FIRST, _MOST_FIRST)))


def _meant(status: int, lifeline: Lifeline) -> int:
    """What a worker's exit status says: a library that ends the process says nothing of the training."""
    return CUT_SHORT if status in (*GOOD, FENCED, STOPPED) and not lifeline.is_finished else status


@contextmanager
def _traced() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        traceback.print_exc()
        if isinstance(error, MemoryError):
            say("this worker ends for want of memory; raise ulimit -v, or give its host more")
        raise


def _adopted() -> set[int]:
    """Become the parent of what children leave behind; gives the children that there are."""
    ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1)
    return _children()


def _children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def _end_children(others: set[int]) -> None:
    """End all children but some; each may leave some itself."""
    while left := _children() - others:
        for child in left:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


class _End(NamedTuple):
    """The end of a run that was noticed by somebody who is not in it.

    Attributes:
        status: with which those end who are in it.
        leaves_at: until when a worker may find that out itself.
    """

    status: int
    leaves_at: float


class _Agent:
    """What the agent tells the others, as long as there is a store."""

    def __init__(
        self,
        giver: Participant,
        connect: Callable[[], Store],
        token: str,
        durations: Durations,
        access: HostAccess | None,
    ) -> None:
        self._access = access
        self._giver = giver
        self._connect = connect
        self._token = token
        self._durations = durations
        self._board: Board | None = None
        self._host = HostSocket(token)
        self._door: socket.socket | None = None
        # Without a name or a descriptor for it, it seems dead while it waits for the store.
        with suppress(OSError):
            self._door = self._host.door_of_agent(giver).claim()
        self._leader: HeartbeatLeader | None = None
        self._relay = 0
        self._count = 0
        self._due = time.monotonic()
        # The store is asked seldom, since every agent asks.
        self._asks = self._due
        self._member_in = NO_EPOCH
        self._is_given_up = False
        # Both matter only where the worker was started again.
        self._was_let_in = False
        self._missed: _End | None = None

    def wait(self, ends: Sequence[int]) -> bool:
        """Until the worker has ended, or it is time to look around; says whether it has ended."""
        while True:
            heard: list[int] = [] if self._leader is None else [self._host.fileno()]
            ready = wait([*ends, *heard], max(0.0, self._due - time.monotonic()))
            if any(each in ready for each in ends):
                return True
            if self._leader is not None:
                self._leader.hear()
            if time.monotonic() >= self._due:
                return False

    def look_around(self) -> None:
        """Give a sign of life, and be the one that speaks for the host if nobody else does."""
        self._count += 1
        sign = sign_of_agent(self._giver, self._count)
        # Without a process for it, another agent speaks, or this one from the next beat on.
        with suppress(NoneLeft):
            if self._leader is None and self._host.listen():
                self._leader = self._speak()
        self._due = time.monotonic() + (self._durations.agents_beat if self._leader is None else self._durations.beat)
        if self._leader is None:
            self._host.give(sign)
            return
        try:
            self._leader.note(sign)
            self._leader.look(self._reach(), time.monotonic())
            # Who is lost is missed at once, and not in the beat after.
            self._due = min(self._due, max(self._leader.due, time.monotonic()) + AT_ONCE)
        except StoreLost:
            self._board = None

    def is_outlived(self, worker: int) -> bool:
        """Whether the others gave the worker up so long ago that it would have left if it could.

        One that is stopped cannot, and the run may end, and the store with it, before the next time to ask.

        Args:
            worker: its process.
        """
        if time.monotonic() < self._asks and process_state(worker) != "T":
            return False
        self._asks = time.monotonic() + self._durations.answer
        was_given_up = self._is_given_up
        try:
            self._is_given_up = self._look_for_end()
        except StoreLost:
            self._board = None
        return was_given_up and self._is_given_up

    def is_late(self) -> bool:
        """Whether the run ended a while ago, and the worker, which was started again, was not let in before.

        It may still be setting up, and the store to which it would come is often gone with the run.
        """
        if self._missed is None:
            self._missed = self._missed_end()
        return self._missed is not None and time.monotonic() >= self._missed.leaves_at

    def judge(self, status: int) -> int:
        """What the worker's end means: none has failed that was too late, whatever it has made of that.

        The store may be gone with the run, which a worker that sets up may take for a loss.
        """
        return status if self._missed is None or status in GOOD else self._missed.status

    def _missed_end(self) -> _End | None:
        member = self._giver.member
        if not member.incarnation or self._was_let_in:
            return None
        try:
            board = self._reach()
            verdict = board.verdicts.newest()
            self._was_let_in = verdict is not None and member in verdict.view.members
            if verdict is None or self._was_let_in or not (verdict.stop or board.end.is_reached(verdict.view)):
                return None
            return _End(STOPPED if verdict.stop else DONE, time.monotonic() + self._durations.silence)
        except StoreLost:
            self._board = None
            return None

    def _look_for_end(self) -> bool:
        board, member = self._reach(), self._giver.member
        begun = board.verdicts.begun()
        # Who joins is in no view yet, and of a death the store tells only until there is a view that has heard it.
        # That nothing is there, or an older view, proves nothing: a stranger may have seen to it.
        if begun is not None and member in begun.view.members:
            self._member_in = max(self._member_in, begun.view.epoch)
        is_left_out = begun is not None and begun.view.epoch > self._member_in > NO_EPOCH
        return is_left_out or board.failures.death(member) is not None

    def leave(self) -> None:
        """Give no more signs, and speak for nobody."""
        if self._leader is None:
            self._host.give(sign_of_agent(self._giver, self._count + 1, over=True))
        else:
            self._leader.leave()
        self._host.close()
        if self._door is not None:
            self._door.close()
        self._leader = None

    def end_relay(self) -> None:
        """End what was started beside this agent, if it was."""
        if self._relay:
            os.kill(self._relay, signal.SIGKILL)
            os.waitpid(self._relay, 0)

    def report_worker(self, status: int) -> None:
        """Report that the own worker has died, if it has."""
        if status in GOOD:
            return
        died = time.monotonic()
        for _ in range(2):
            try:
                if status != FENCED or self._is_in_view():
                    death = Death(str(self._giver.member), _reason(status, self._giver.rank), "agent", died)
                    self._reach().declare_dead([death], f"agent of {self._giver}")
                return
            except StoreLost:
                # Where another agent speaks, the connection may have been lost long ago.
                self._board = None

    def report_gone(self, status: int) -> None:
        """Report that a worker that has died will do nothing more, nor anything that it has started."""
        # Without a board, its death could not be told either.
        if status in GOOD or self._board is None:
            return
        with suppress(StoreLost):
            self._board.failures.tell_gone(self._giver)

    def _is_in_view(self) -> bool:
        verdict = self._reach().verdicts.newest()
        return verdict is not None and self._giver.member in verdict.view.members

    def _speak(self) -> HeartbeatLeader:
        """Speak for the host from now on."""
        direct = None
        if self._access is not None:
            relay = self._access.relay
            if relay is not None:
                try:
                    self._relay = fork_below(partial(self._serve_relay, relay))
                except NoneLeft:
                    self._host.close()
                    self._host = HostSocket(self._token)
                    raise
            # Where it cannot be hailed, it tells the store.
            with suppress(OSError):
                spares = relay is not None
                heartbeats = DirectHeartbeats(host_name(), self._token, self._durations.silence, spares=spares)
                direct = DirectHeartbeatSocket(heartbeats, self._access.address, self._durations.beat)
        return HeartbeatLeader(self._host, host_name(), self._durations, self._giver.rank.size, direct)

    def _serve_relay(self, relay: Callable[[], None]) -> None:
        """In a process that ends with this one, or after the worker."""
        with _traced():
            ignore_signals()
            # Where it stayed open here, nobody else could speak for the host.
            self._host.close()
            relay()

    def _reach(self) -> Board:
        if self._board is None:
            self._board = Board(self._connect(), self._token)
        return self._board


def _reason(status: int, rank: ServerRank) -> str:
    if status < 0:
        how = f"was killed by signal {-status} ({signal.Signals(-status).name})"
    else:
        how = "ended before it was done" if status == CUT_SHORT else f"ended with status {status}"
    return how if rank.size == 1 else f"has lost rank {rank.number}, which {how}"
