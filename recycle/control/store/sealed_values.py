"""Bytes in the store, each sealed for its key: what lacks the seal is not there."""

import time
from collections.abc import Sequence

from recycle.control.store.sealed_store import STRANGE, SealedStore
from recycle.control.store.store import Store


class SealedValues:
    """A connection for what is no message of the members: torch's addresses, and what processes say before a run.

    Args:
        store: a connection to the store.
        token: the secret of all who use the keys.
    """

    def __init__(self, store: Store, token: str) -> None:
        self._sealed = SealedStore(store, token)

    def set(self, key: str, value: bytes) -> None:
        """Store a value, whatever is there."""
        self._sealed.write(key, value)

    def get(self, key: str) -> bytes | None:
        """The value, or None where there is none; never waits for one."""
        return self._sealed.read(key, bytes)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """The same for some keys, in few requests."""
        found = self._sealed.read_all({key: key for key in keys}, bytes)
        return [found.get(key) for key in keys]

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Store ``desired`` if what is there is ``expected``; gives what is there then. Empty means nothing."""
        before = self._sealed.seal(key, expected) if expected else b""
        while True:
            stored = self._sealed.plain.compare_set(key, before, self._sealed.seal(key, desired))
            found = self._sealed.find(key, stored, bytes)
            if found is not None:
                return found
            if expected or not stored:
                return b""
            before = stored  # a stranger's

    def wait(self, key: str, timeout: float) -> bytes | None:
        """Wait until a key has a value; None if it has none. The connection is busy for that long.

        Args:
            key: which key.
            timeout: in seconds.
        """
        end = time.monotonic() + timeout
        while True:
            left = max(0.0, end - time.monotonic())
            stored = self._sealed.plain.wait(key, left)
            found = self._sealed.find(key, stored, bytes)
            if found is not None or stored is None or not left:
                return found
            # A stranger's; nobody can wait for another one in its place.
            time.sleep(min(STRANGE, left))

    def has_strange(self, keys: Sequence[str]) -> bool:
        """Whether something is under some keys that lacks the seal."""
        stored = dict(zip(keys, self._sealed.plain.get_many(keys), strict=True))
        return any(each is not None and self._sealed.find(key, each, bytes) is None for key, each in stored.items())
