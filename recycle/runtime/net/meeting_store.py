"""Torch's view of the run's store: where process groups meet. What they meet by is sealed with the run's token."""

import threading
from datetime import timedelta

from torch.distributed import DistStoreError, PrefixStore
from torch.distributed import Store as Meeting

from recycle.control.store.sealed_values import SealedValues
from recycle.control.store.store import Store


class MeetingStore(Meeting):
    """A store of torch's that keeps everything in one of ours, as far as process groups ask for it.

    Args:
        store: a connection, which has to be kept as long as groups connect over it; it is in use whenever this is.
        token: the run's. What was stored without it is not there.
        prefix: of all keys.
        lock: held while the connection is in use; None if no other object uses it.
    """

    def __init__(self, store: Store, token: str, prefix: str = "", lock: "threading.Lock | None" = None) -> None:
        super().__init__()
        self._store = SealedValues(store, token)
        self._token = token
        self._prefix = prefix
        # Torch may ask from any thread.
        self._lock = lock or threading.Lock()

    def within(self, prefix: str) -> "MeetingStore":
        """The part of it whose keys begin in a certain way, over the same connection.

        A group of torch's that asks it later does not keep it alive; a PrefixStore of torch's keeps what it is over.
        """
        made = MeetingStore(self._store.plain, self._token, f"{self._prefix}{prefix}/", self._lock)
        made.set_timeout(self.timeout)  # type: ignore[attr-defined]  # the stubs lack it
        return made

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value."""
        with self._lock:
            self._store.write(self._prefix + key, _bytes(value))

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        """The same for some keys, in few requests."""
        with self._lock:
            said = zip(keys, values, strict=True)
            self._store.write_all({self._prefix + key: _bytes(value) for key, value in said})

    def get(self, key: str) -> bytes:
        """The value, as soon as there is one.

        Raises:
            DistStoreError: there is none within the time-out.
        """
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """The values, as soon as all are there.

        Raises:
            DistStoreError: they are not within the time-out.
        """
        while (found := self.look(keys)) is None:
            self.wait(keys)
        return found

    def look(self, keys: list[str]) -> list[bytes] | None:
        """The values if all are there, and None if not, without a wait."""
        with self._lock:
            return self._store.get_all([self._prefix + key for key in keys])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Store a value if what is there is as expected; gives what is there then."""
        with self._lock:
            return self._store.compare_set(self._prefix + key, _bytes(expected), _bytes(desired))

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return self.look(keys) is not None

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there.

        Raises:
            DistStoreError: they are not within the time-out.
        """
        limit: timedelta = timeout or self.timeout  # type: ignore[attr-defined]  # the stubs lack it
        for key in keys:
            with self._lock:
                there = self._store.wait(self._prefix + key, limit.total_seconds())
            if there is None:
                raise DistStoreError(f"nobody has set {key} within {limit}")


def within(prefix: str, store: Meeting) -> Meeting:
    """The part of a store whose keys begin in a certain way."""
    return store.within(prefix) if isinstance(store, MeetingStore) else PrefixStore(prefix, store)


def look(store: Meeting, keys: list[str]) -> list[bytes] | None:
    """The values if all are there, and None if not.

    Whoever asks a store of torch's whether a key is there, and for its value then, waits for minutes if a stranger
    deletes it in between.
    """
    if isinstance(store, MeetingStore):
        return store.look(keys)
    return [bytes(each) for each in store.multi_get(keys)] if store.check(keys) else None


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
