"""The agent: a process that starts one worker, watches it and some others, and reports deaths at once."""

import ctypes
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from typing import Literal

from recycle.control.beats import Watchlist, watched
from recycle.control.board import Board
from recycle.control.durations import Durations
from recycle.control.errors import StoreLost
from recycle.control.lifeline import Lifeline, exit_status
from recycle.control.messages import Death, Verdict
from recycle.control.store import Store
from recycle.control.view import SOLE, Member, ServerRank, View

DONE = 0
"""The exit status of a worker whose training is done."""

FENCED = 75
"""The exit status of a worker that has left the run because the others go on without it."""

STOPPED = 74
"""The exit status of a worker that ended because the run cannot go on."""

LEFT = 73
"""The exit status of a worker that was told to leave, and has told the others."""

_SET_PARENT_DEATH_SIGNAL = 1


def run_agent(
    member: Member,
    body: Callable[[], int],
    connect: Callable[[], Store],
    token: str,
    durations: Durations,
    began: Callable[[int], None] = lambda _: None,
    rank: ServerRank = SOLE,
) -> int:
    """Run a worker in a process of its own, and tell the others as soon as it is dead.

    The worker dies with its agent. The calling process must have no other threads, because it forks. While the store is
    away the agent goes on watching its worker, and tries to connect again.

    Args:
        member: which member the worker is.
        body: what the worker runs; gives its exit status, 0 for a run that has ended as it should.
        connect: makes a connection to the store, or raises StoreLost.
        token: the run's.
        durations: how often to look, and after which silence another member is dead.
        began: called with the worker's process once it is there.
        rank: of the server that the worker is; its death is the server's.

    Returns:
        The worker's exit status, or minus the number of the signal that killed it.
    """
    lifeline = Lifeline()
    worker = _fork(body, lifeline)
    began(worker)
    agent = _Agent(member, connect, token, durations, rank)
    exited = os.pidfd_open(worker)
    ends = [exited]
    while not select.select(ends, [], [], durations.beat)[0]:
        agent.look_around()
        if len(ends) == 1 and lifeline.is_held:
            ends.append(lifeline.watch())
    status = exit_status(worker)
    if status is not None:
        agent.report_worker(status)
    final = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    if final != status:
        agent.report_worker(final)
    for end in ends:
        os.close(end)
    return final


def _fork(body: Callable[[], int], lifeline: Lifeline) -> int:
    parent = os.getpid()
    worker = os.fork()
    if worker:
        return worker
    status = 1
    try:
        die_with_parent()
        # The agent may have died before the line above.
        if os.getppid() == parent:
            lifeline.hold()
            status = body()
    except BaseException:
        traceback.print_exc()
    finally:
        # Not the usual way out: destroying process groups whose other ends are gone can take seconds.
        os._exit(status)


def die_with_parent() -> None:
    """From now on, this process is killed when the one that forked it dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


class _Agent:
    """What the agent tells the others, as long as there is a store."""

    def __init__(
        self, member: Member, connect: Callable[[], Store], token: str, durations: Durations, rank: ServerRank
    ) -> None:
        self._member = member
        self._rank = rank
        self._connect = connect
        self._token = token
        self._watchlist = Watchlist(durations.silence)
        self._board: Board | None = None
        self._verdict: Verdict | None = None
        self._watched: tuple[Member, ...] = ()
        self._silent: set[Member] = set()

    def look_around(self) -> None:
        """Report the members that are watched from here and have fallen silent."""
        try:
            board = self._reach()
            verdict = board.verdicts.newest()
            if verdict is not self._verdict or not self._watched:
                self._choose(board, verdict)
            counts = board.beats.counts(self._watched, self._rank.size)
            if verdict is None:
                # Some may still be on their way; who is in a view has been there.
                counts = {member: count for member, count in counts.items() if count}
            silent = self._watchlist.observe(time.monotonic(), counts)
            for member, since in silent.items():
                reason = f"has given no sign of life for {time.monotonic() - since:.1f} s"
                self._declare_dead(member, reason, "heartbeat", since)
            if silent:
                self._silent |= set(silent)
                self._choose(board, verdict)
        except StoreLost:
            self._board = None

    def _choose(self, board: Board, verdict: Verdict | None) -> None:
        """Choose whom to watch from now on."""
        begun = verdict or board.verdicts.opening()
        view = View(-1, ()) if begun is None else begun.view
        self._verdict = verdict
        self._silent &= set(view.members)
        self._watched = watched(view, self._member, self._silent) if self._member in view.members else ()

    def report_worker(self, status: int) -> None:
        """Report that the own worker has died, if it has."""
        if status in (DONE, LEFT):
            return
        died = time.monotonic()
        try:
            if status == FENCED and not self._is_in_view():
                return
            self._declare_dead(self._member, _reason(status, self._rank), "agent", died)
        except StoreLost:
            self._board = None

    def _is_in_view(self) -> bool:
        verdict = self._reach().verdicts.newest()
        return verdict is not None and self._member in verdict.view.members

    def _declare_dead(
        self, member: Member, reason: str, noticed: Literal["agent", "heartbeat"], last_sign: float
    ) -> None:
        death = Death(str(member), reason, noticed, last_sign)
        self._reach().declare_dead(death, f"agent of {self._rank.of(self._member)}")

    def _reach(self) -> Board:
        if self._board is None:
            self._board = Board(self._connect(), self._token)
        return self._board


def _reason(status: int, rank: ServerRank) -> str:
    how = (
        f"was killed by signal {-status} ({signal.Signals(-status).name})"
        if status < 0
        else f"ended with status {status}"
    )
    return how if rank.size == 1 else f"has lost rank {rank.number}, which {how}"
