"""A member's way to the store, through the store's loss and its return."""

import time
from collections.abc import Mapping
from datetime import timedelta

from torch.distributed import Store as Meeting

from recycle.control.board import keys
from recycle.control.board.board import Board
from recycle.control.membership.durations import Durations
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.messages import Verdict
from recycle.control.store.store import Store
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.net.meeting_store import MeetingStore


class StoreConnection:
    """The connection of the thread that trains.

    Args:
        endpoint: where the run's store is.
        durations: how long is waited for what.

    Attributes:
        endpoint: as above.
        durations: as above.
        board: over the present connection.

    Raises:
        StoreLost: there is no store.
    """

    def __init__(self, endpoint: Endpoint, durations: Durations) -> None:
        self.endpoint = endpoint
        self.durations = durations
        self._take(endpoint.connect())

    def meeting(self) -> Meeting:
        """Where groups are built: the store as torch sees it, waiting for nobody longer than a rebuild may take."""
        self._meeting.set_timeout(timedelta(seconds=self.durations.rebuild))
        return self._meeting

    def renew(self, verdict: Verdict, lasting: Mapping[str, bytes]) -> Verdict | None:
        """Connect again after a loss, to a store that may be new and empty.

        Args:
            verdict: of the present view; proposed to the store.
            lasting: what lasts as long as the run, by its keys; told to the store if it has it not.

        Returns:
            The verdict that the store holds; None if there still is no store.
        """
        try:
            store = self.endpoint.connect(self.durations.silence)
            board = Board(store, self.endpoint.token)
            board.tell_again(lasting)
            stored = board.verdicts.propose(verdict)
        except StoreLost:
            return None
        self._take(store)
        return stored

    def _take(self, store: Store) -> None:
        self.board = Board(store, self.endpoint.token)
        # Groups go on using it, and do not keep it.
        self._meeting = MeetingStore(store, self.endpoint.token)


class StoreProbe:
    """Writes to the store, and looks whether it still has what the run has written.

    A store that answers may refuse what is written, or have come back without its data. Whoever only waits for alarms
    would not find out before there is one.

    Args:
        every: seconds between two tries.

    Attributes:
        lasting: what lasts as long as the run, as the store had it last.
        notes: what the first process told all others at the start, by name.
        epoch: of the newest view, as it was announced last; -1 before one was.
    """

    def __init__(self, every: float) -> None:
        self.lasting: dict[str, bytes] = {}
        self.notes: Mapping[str, bytes] = {}
        self.epoch = -1
        self._every = every
        self._turn = 0

    def look(self, board: Board) -> None:
        """Try, if it is time to.

        Raises:
            StoreLost: the store takes nothing, or has lost what the run has written.
        """
        # The same moments for all workers of a host, so that their relay asks once for all of them.
        turn = int(time.monotonic() / self._every)
        if turn != self._turn:
            self.require(board)
            self._turn = turn

    def require(self, board: Board) -> None:
        """Try now.

        Raises:
            StoreLost: the store takes nothing, or has lost what the run has written.
        """
        found = board.probe()
        wanted = found.pop(keys.WANTED, None)
        if missing := {key: value for key, value in self.lasting.items() if key not in found}:
            board.tell_again(missing)
        self.lasting |= found
        if wanted is not None:
            board.notes.put_back(self.notes)
        number = board.verdicts.number()
        self.epoch = -1 if number is None else number
