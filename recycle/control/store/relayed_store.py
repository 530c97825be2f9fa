"""The store as the members of a host ask for it: through the host's relay, and without it while there is none."""

from collections.abc import Callable, Mapping, Sequence

from recycle.control.membership.doors import HostDoor
from recycle.control.membership.errors import ControlError, StoreErased, StoreLost
from recycle.control.store.relay_connection import RelayConnection
from recycle.control.store.relay_requests import (
    Add,
    Append,
    CompareSet,
    Delete,
    Get,
    Open,
    ReadLog,
    Request,
    Result,
    Set,
    WaitEntry,
    WaitKey,
)
from recycle.control.store.store import Entries, Store


class RelayedStore(Store):
    """A connection to a store of which the members of a host ask together; see Store.

    Where the relay ends, what it had not answered is asked again without it. So requests may be carried out twice,
    which the store has to allow for.

    Args:
        door: where the relay listens.
        connect: to the store itself, or raises StoreLost.

    Raises:
        StoreLost: there is no store.
    """

    forgets = True

    def __init__(self, door: HostDoor, connect: Callable[[], Store]) -> None:
        self._door = door
        self._connect = connect
        self._relay = RelayConnection(door)
        # While there is none.
        self._own: Store | None = None
        self._ask(Open(), lambda store: None)

    def set_many(self, values: Mapping[str, bytes]) -> None:
        """See Store."""
        self._ask(Set(dict(values)), lambda store: store.set_many(values))

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """See Store."""
        found = self._ask(Get(tuple(keys)), lambda store: store.get_many(keys))
        assert isinstance(found, list)
        return found

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """See Store."""
        request = CompareSet(key, expected, desired)
        found = self._ask(request, request.ask)
        assert isinstance(found, bytes)
        return found

    def wait(self, key: str, timeout: float) -> bytes | None:
        """See Store."""
        found = self._ask(WaitKey(key, timeout), lambda store: store.wait(key, timeout), timeout)
        assert found is None or isinstance(found, bytes)
        # The time may have been over before the relay has looked.
        return self.get(key) if found is None else found

    def hear(self, key: str, timeout: float) -> bytes | None:
        """See Store."""
        found = self._ask(WaitKey(key, timeout, is_bell=True), lambda store: store.hear(key, timeout), timeout)
        assert found is None or isinstance(found, bytes)
        return found

    def add(self, key: str, amount: int) -> int:
        """See Store."""
        request = Add(key, amount)
        found = self._ask(request, request.ask)
        assert isinstance(found, int)
        return found

    def append(self, log: str, *entries: bytes) -> None:
        """See Store."""
        self._ask(Append(log, entries), lambda store: store.append(log, *entries))

    def entries(self, log: str, after: int) -> Entries:
        """See Store."""
        request = ReadLog(log, after)
        found = self._ask(request, request.ask)
        assert isinstance(found, Entries)
        return found

    def wait_entry(self, log: str, after: int, timeout: float) -> bool:
        """See Store."""
        found = self._ask(WaitEntry(log, after, timeout), lambda store: store.wait_entry(log, after, timeout), timeout)
        return bool(found)

    def delete(self, key: str) -> None:
        """See Store."""
        request = Delete(key)
        self._ask(request, request.ask)

    def delete_all(self, outlived: Callable[[str], bool]) -> None:
        """See Store."""
        self._directly(lambda store: store.delete_all(outlived))

    def clone(self) -> "RelayedStore":
        """See Store."""
        return RelayedStore(self._door, self._connect)

    def _ask(self, request: Request, itself: Callable[[Store], Result], timeout: float = 0.0) -> Result:
        """Ask the relay; where there is none, the store itself."""
        answer = self._relay.ask(request, timeout)
        if answer is None:
            return self._directly(itself)
        self._own = None
        if answer.lost:
            raise (StoreErased if answer.erased else StoreLost)(answer.lost)
        if answer.refusal:
            raise ControlError(answer.refusal)
        return answer.result

    def _directly(self, ask: Callable[[Store], Result]) -> Result:
        if self._own is None:
            self._own = self._connect()
        return ask(self._own)
