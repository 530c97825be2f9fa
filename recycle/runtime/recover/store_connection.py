"""A member's way to the store, through the store's loss and its return."""

from datetime import timedelta

from torch.distributed import Store

from recycle.control.board import Board
from recycle.control.durations import Durations
from recycle.control.errors import StoreLost
from recycle.control.messages import Verdict
from recycle.runtime.net.endpoint import Endpoint


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
        self._store = endpoint.connect()
        self.board = Board(self._store, endpoint.token)

    def meeting(self) -> Store:
        """Where groups are built: torch's own store, waiting for nobody longer than a rebuild may take."""
        store = self._store.torch_store
        store.set_timeout(timedelta(seconds=self.durations.rebuild))
        return store

    def renew(self, verdict: Verdict) -> Verdict | None:
        """Connect again after a loss, to a store that may be new and empty.

        Args:
            verdict: of the present view; proposed to the store.

        Returns:
            The verdict that the store holds; None if there still is no store.
        """
        try:
            store = self.endpoint.connect(self.durations.silence)
            board = Board(store, self.endpoint.token)
            stored = board.verdicts.propose(verdict)
        except StoreLost:
            return None
        self._store, self.board = store, board
        return stored
