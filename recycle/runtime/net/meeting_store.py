"""Torch's view of the run's store: where process groups meet. What they meet by is sealed with the run's token."""

import threading
from datetime import timedelta

from torch.distributed import DistStoreError
from torch.distributed import Store as Meeting

from recycle.control.store.sealed_values import SealedValues
from recycle.control.store.store import Store


class MeetingStore(Meeting):
    """A store of torch's that keeps everything in one of ours, as far as process groups ask for it.

    Args:
        store: a connection, which has to be kept as long as groups connect over it; it is in use whenever this is.
        token: the run's. What was stored without it is not there.
    """

    def __init__(self, store: Store, token: str) -> None:
        super().__init__()
        self._store = SealedValues(store, token)
        # Torch may ask from any thread.
        self._lock = threading.Lock()

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value."""
        with self._lock:
            self._store.write(key, _bytes(value))

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        """The same for some keys, in few requests."""
        with self._lock:
            self._store.write_all({key: _bytes(value) for key, value in zip(keys, values, strict=True)})

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
        while True:
            with self._lock:
                found = self._store.get_all(keys)
            if found is not None:
                return found
            self.wait(keys)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Store a value if what is there is as expected; gives what is there then."""
        with self._lock:
            return self._store.compare_set(key, _bytes(expected), _bytes(desired))

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        with self._lock:
            return self._store.get_all(keys) is not None

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there.

        Raises:
            DistStoreError: they are not within the time-out.
        """
        limit: timedelta = timeout or self.timeout  # type: ignore[attr-defined]  # the stubs lack it
        for key in keys:
            with self._lock:
                there = self._store.wait(key, limit.total_seconds())
            if there is None:
                raise DistStoreError(f"nobody has set {key} within {limit}")


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
