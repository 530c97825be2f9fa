"""How a run has ended, as far as the store tells it to those who do not train."""

import time
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from contextlib import contextmanager, suppress

from recycle.control.board.board import Board
from recycle.control.host.agent import DONE, STOPPED
from recycle.control.host.signs import agent_lives
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.view import Member
from recycle.job import Server
from recycle.runtime.errors import RunError
from recycle.runtime.net.endpoint import Endpoint
from recycle.threads import NoneLeft

PATIENCE = 5.0
"""Seconds until a store that cannot be reached counts as lost."""


@contextmanager
def before_run() -> Iterator[None]:
    """Where the store is lost before there is a run, or the system gives no process, there will be none.

    Raises:
        RunError: it is lost, or none is given.
    """
    try:
        yield
    except StoreLost as error:
        raise RunError(f"the run cannot begin: {error}; see what is said there, and start all again") from error
    except NoneLeft as error:
        raise RunError(str(error)) from error


def was_kept(board: Board) -> bool | None:
    """Whether all who were left have reached the end of the run; None as long as they are on their way.

    Args:
        board: of the run.

    Raises:
        StoreLost: there is no store.
    """
    # What is missing for a moment is the end of nothing.
    verdict = board.verdicts.last()
    if verdict is None or verdict.stop:
        return False
    if board.end.is_reached(verdict.view):
        return True
    return None if any(board.failures.death(each) is None for each in verdict.view.members) else False


def goes_on(endpoint: Endpoint) -> bool:
    """Whether somebody trains, or nobody can say.

    Args:
        endpoint: of the run's store.
    """
    try:
        return was_kept(endpoint.board()) is None
    except StoreLost:
        return True


def ranks_at_end(endpoint: Endpoint, servers: Sequence[Server]) -> Collection[int]:
    """Who is in the last view, as far as anybody knows.

    Args:
        endpoint: of the run's store.
        servers: of all processes, by rank.

    Returns:
        Their ranks.
    """
    with suppress(StoreLost):
        verdict = endpoint.board().verdicts.last()
        if verdict is not None:
            return [rank for rank, server in enumerate(servers) if server in verdict.view.servers]
    return range(len(servers))


def is_over(board: Board) -> bool:
    """Whether nobody will go on from what is in memory: the run has come to an end, or to none that can be mended."""
    try:
        verdict = board.verdicts.newest()
        return verdict is not None and (bool(verdict.stop) or board.end.is_reached(verdict.view))
    except StoreLost:
        return False


def live_elsewhere(board: Board | None, here: Container[Member]) -> list[Server]:
    """The live servers that were not started here, as far as anybody knows.

    Args:
        board: of the run; None where there is none.
        here: who was started here.
    """
    try:
        verdict = board.verdicts.newest() if board is not None else None
        if board is None or verdict is None:
            return []
        members = [each for each in verdict.view.members if each not in here]
        return [each.server for each in members if board.failures.death(each) is None]
    except StoreLost:
        return []


def end_with_run(endpoint: Endpoint, status: int, beat: float, told_to_end: Callable[[], bool]) -> int:
    """Wait for the end of a run that goes on without the server of this process.

    Who has started this process, be it torchrun or Slurm, sees no failure as long as the others can go on.

    Args:
        endpoint: where the run's store is.
        status: with which the server's agent has ended.
        beat: seconds between two looks.
        told_to_end: whether somebody wants this process to end.

    Returns:
        The exit status of this process: 0 if the run was kept, with this server or without it.
    """
    if status in (DONE, STOPPED):
        return status
    board: Board | None = None
    kept: bool | None = None
    while not told_to_end() and kept is None:
        try:
            board = board or endpoint.board(PATIENCE)
            kept = was_kept(board)
        except StoreLost:
            # Others of this host may train without it, and would be ended with this process.
            board, kept = None, None if agent_lives(endpoint.token) else False
        if kept is None:
            time.sleep(beat)
    if kept:
        return DONE
    return status if status >= 0 else 128 - status
