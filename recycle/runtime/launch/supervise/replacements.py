"""The lives of servers that a launcher is to start, each as soon as there is a store."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from recycle.control.board.board import Board
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.participant import Participant
from recycle.job import Server

Lives = Callable[[Board], Sequence[Participant]]
"""Gives the processes of a server's next life, whose number the store knows."""


class _Wanted(NamedTuple):
    server: Server
    lives: Lives


class Replacements:
    """Starts the next lives of servers; those for which the store is lost wait until it is back.

    Args:
        connect: makes another connection, in the place of one that is of no use any more; raises StoreLost.
        start: starts a process.
        warn: is told of a server why it has to wait.
        pause: seconds between two tries.
    """

    def __init__(
        self,
        connect: Callable[[], Board],
        start: Callable[[Participant], object],
        warn: Callable[[Server, str], object],
        pause: float,
    ) -> None:
        self._connect = connect
        self._start = start
        self._warn = warn
        self._pause = pause
        self._wanted: deque[_Wanted] = deque()
        self._due: float | None = None

    def want(self, server: Server, lives: Lives, *, at_once: bool = True) -> None:
        """Have a server's next life started by a later look.

        Args:
            server: which.
            lives: see Lives.
            at_once: whether by the next one, and not after a pause.
        """
        self._wanted.append(_Wanted(server, lives))
        if not at_once:
            self._due = time.monotonic() + self._pause

    def look(self, board: Board | None) -> Board | None:
        """Start what can be started.

        Args:
            board: of the run; None where its store is known to be lost.

        Returns:
            The board, or another one in its place.
        """
        if not self._wanted or (self._due is not None and time.monotonic() < self._due):
            return board
        try:
            if board is None:
                raise StoreLost("its process is gone")
            if self._due is not None:
                board = self._connect()
            while self._wanted:
                for each in self._wanted[0].lives(board):
                    self._start(each)
                self._wanted.popleft()
            self._due = None
        except StoreLost:
            if self._due is None:
                server = self._wanted[0].server
                self._warn(server, f"the store is lost: {server} is started again when it is back")
            self._due = time.monotonic() + self._pause
        return board
