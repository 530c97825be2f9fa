"""Tries, while nothing is wrong, what only a recovery needs of the store."""

import time
from collections.abc import Mapping

from recycle.control.board import keys
from recycle.control.board.board import Board
from recycle.control.membership.errors import StoreErased


class StoreProbe:
    """Writes to the store, and looks whether it still has what the run has written.

    A store that answers may refuse what is written, or have come back without its data. Whoever only waits for alarms
    would not find out before there is one.

    Args:
        every: seconds between two tries.

    Attributes:
        lasting: what lasts as long as the run, as the store had it last.
        notes: what the first process told all others at the start, by name.
    """

    def __init__(self, every: float) -> None:
        self.lasting: dict[str, bytes] = {}
        self.notes: Mapping[str, bytes] = {}
        self._every = every
        self._turn = 0

    def look(self, board: Board) -> None:
        """Try, if it is time to.

        Raises:
            StoreLost: the store takes nothing.
            StoreErased: it has lost what the run has written.
        """
        # The same moments for all workers of a host, so that their relay asks once for all of them.
        turn = int(time.monotonic() / self._every)
        if turn != self._turn:
            self.require(board)
            self._turn = turn

    def require(self, board: Board) -> None:
        """Try now.

        Raises:
            StoreLost: the store takes nothing.
            StoreErased: it has lost what the run has written.
        """
        found = board.probe()
        wanted = found.pop(keys.WANTED, None)
        # A store that has lost its data has none of it. In one that cannot, a stranger has seen to that.
        if keys.RUN in self.lasting and not found and board.store_forgets:
            raise StoreErased("it came back without what the run had written there")
        if missing := {key: value for key, value in self.lasting.items() if key not in found}:
            board.tell_again(missing)
        self.lasting |= found
        if wanted is not None:
            board.notes.put_back(self.notes)
