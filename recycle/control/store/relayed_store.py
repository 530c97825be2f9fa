"""The store as the members of a host ask for it: through the host's relay, and without it while there is none."""

from collections.abc import Callable

from recycle.control.membership.doors import HostDoor
from recycle.control.store.host_requests import Request, Result
from recycle.control.store.host_store import HostConnection, HostStore, result_of
from recycle.control.store.store import Store

SLOW = 15.0
"""Seconds without an answer after which a relay is stopped, and not the store that it asks."""


class RelayedStore(HostStore):
    """A connection to a store of which the members of a host ask together; see Store.

    Where the relay ends, what it had not answered is asked again without it. So requests may be carried out twice,
    which the store has to allow for.

    Args:
        door: where the relay listens.
        connect: to the store itself, or raises StoreLost.

    Raises:
        StoreLost: there is no store.
    """

    def __init__(self, door: HostDoor, connect: Callable[[], Store]) -> None:
        self._door = door
        self._connect = connect
        self._relay = HostConnection(door, SLOW)
        # While there is none.
        self._own: Store | None = None
        self._ask(Request("clone"))

    def wait(self, key: str, timeout: float) -> bytes | None:
        """See Store."""
        found = super().wait(key, timeout)
        # The time may have been over before the relay has looked.
        return self.get(key) if found is None else found

    def delete_all(self, outlived: Callable[[str], bool]) -> None:
        """See Store."""
        self._itself().delete_all(outlived)

    def clone(self) -> "RelayedStore":
        """See Store."""
        return RelayedStore(self._door, self._connect)

    def _ask(self, request: Request) -> Result:
        """Ask the relay, which gets the same from the store; where there is none, the store itself."""
        answer = self._relay.ask(request)
        if answer is None:
            return request.ask(self._itself(), request.timeout)
        self._own = None
        return result_of(answer)

    def _itself(self) -> Store:
        if self._own is None:
            self._own = self._connect()
        return self._own
