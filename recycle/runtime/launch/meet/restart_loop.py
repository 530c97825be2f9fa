"""The lives of a server whose process was started apart: after each, what comes next."""

import time
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

from recycle.control.host.agent import CUT_SHORT, DONE, FENCED, STOPPED
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.view import Member, ServerRank
from recycle.job import Server
from recycle.runtime.errors import RunError
from recycle.runtime.launch.process.outcome import was_kept
from recycle.runtime.launch.process.restarts import Restarts, has_crashed
from recycle.runtime.net.endpoint import Endpoint
from recycle.threads import NoneLeft


class RestartLoop:
    """Finds the next life of a server in a run that is going on.

    A server of several ranks comes back with all of them: the one that crashed decides that there is a next life, and
    the others, which end without having failed, wait for that.

    Args:
        endpoint: of the run's store.
        ranks: of a server.
        beat: seconds between two looks.
        told_to_end: whether somebody wants this process to end.
        stay: says that this process waits for the end of the run, or for another life.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        ranks: int,
        beat: float,
        told_to_end: Callable[[], bool],
        stay: Callable[[], None] = lambda: None,
    ) -> None:
        self._endpoint = endpoint
        self._ranks = ranks
        self._beat = beat
        self._told_to_end = told_to_end
        self.stay = stay

    def first(
        self, server: Server, rank: ServerRank, patience: float, say: Callable[[str], None], *, is_late: bool = False
    ) -> Member:
        """The life with which a server begins here: a new one where a run goes on without it, as on a replaced host.

        Args:
            server: which.
            rank: of the server that this process is; all of them are started anew.
            patience: seconds for which it may still be missed by nobody.
            say: tells the user that this is waited for.
            is_late: whether the run had begun before this process came.

        Raises:
            RunError: it is alive elsewhere.
            StoreLost: there is no store.
        """
        board, deadline, said = self._endpoint.board(), time.monotonic() + patience, False
        if is_late:
            board.verdicts.last()
        while (begun := board.verdicts.begun()) is not None and server in begun.view.servers:
            if self._told_to_end() or board.failures.death(begun.view.member(server)) is not None:
                break
            if time.monotonic() > deadline:
                raise RunError(
                    f"{server} is alive: the run goes on with it elsewhere; end it there before it is replaced, and "
                    "give another job a MASTER_PORT of its own"
                )
            if not said:
                said = True
                say(f"a run goes on there; looking for {patience:g} s whether it has lost {server}")
            time.sleep(self._beat)
        if begun is None:
            return Member(server, 0)
        return board.joining.replacement(server, rank, uuid4().hex)

    def may_follow(self) -> bool:
        """Whether the run goes on, so that another life makes sense."""
        with suppress(StoreLost):
            return not self._told_to_end() and was_kept(self._endpoint.board()) is None
        return False

    def serve(self, serve: Callable[[Member], int], member: Member, say: Callable[[str], None]) -> int:
        """Serve as a member, as soon as the system gives a process for it; see ``serve_again``."""
        said = False
        while True:
            try:
                return serve(member)
            except NoneLeft as error:
                if not said:
                    said = True
                    say(f"{member.server} cannot be started: {error}; it is tried until it can")
            if not self.may_follow():
                return CUT_SHORT
            time.sleep(self._beat)

    def after_crash(self, member: Member) -> Member | None:
        """The life after one that has crashed here; None without a store."""
        with suppress(StoreLost):
            return self._endpoint.board().joining.next_life(member)
        return None

    def after_others(self, member: Member) -> Member | None:
        """The life after one that another rank has ended, once that rank is started again; None if it never is."""
        with suppress(StoreLost):
            board = self._endpoint.board()
            while self._ranks > 1 and not self._told_to_end() and was_kept(board) is None:
                if (life := board.joining.decided_life(member)) is not None:
                    return life
                time.sleep(self._beat)
        return None


def serve_again(
    serve: Callable[[Member], int], member: Member, lives: RestartLoop, restarts: Restarts, say: Callable[[str], None]
) -> int:
    """Serve, and start again after a crash, as often as that may be.

    Args:
        serve: serves as a member, and gives the status with which its worker has ended.
        member: the first life.
        lives: finds the next ones.
        restarts: counts.
        say: tells the user that there is no other.

    Returns:
        The status with which the last worker has ended.
    """
    life: Member | None = member
    status = DONE
    while life is not None:
        last, life = life, None
        status = lives.serve(serve, last, say)
        if status not in (DONE, STOPPED):
            lives.stay()
        if status == FENCED:
            life = lives.after_others(last)
        elif has_crashed(status) and lives.may_follow():
            if restarts.allow(member.server, time.monotonic()):
                life = lives.after_crash(last)
            elif refusal := restarts.refusal(member.server):
                say(refusal)
    return status
