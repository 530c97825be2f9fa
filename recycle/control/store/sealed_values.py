"""Bytes in the store, each sealed for its key: what lacks the seal is not there."""

import time
from collections.abc import Sequence

from recycle.control.store.sealed_store import STRANGE, SealedStore


class SealedValues(SealedStore):
    """A connection for what is no message of the members: torch's addresses, and what processes say before a run."""

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of some keys, or None where there is none, in few requests."""
        found = self.read_all({key: key for key in keys}, bytes)
        return [found.get(key) for key in keys]

    def get_all(self, keys: Sequence[str]) -> list[bytes] | None:
        """The same if all are there, else None."""
        stored = self.plain.get_all(keys)
        if stored is None:
            return None
        found = [self.find(key, each, bytes) for key, each in zip(keys, stored, strict=True)]
        there = [each for each in found if each is not None]
        return there if len(there) == len(keys) else None

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Store ``desired`` if what is there is ``expected``; gives what is there then. Empty means nothing."""
        before = self.seal(key, expected) if expected else b""
        while True:
            stored = self.plain.compare_set(key, before, self.seal(key, desired))
            found = self.find(key, stored, bytes)
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
            stored = self.plain.wait(key, left)
            found = self.find(key, stored, bytes)
            if found is not None or stored is None or not left:
                return found
            # A stranger's; nobody can wait for another one in its place.
            time.sleep(min(STRANGE, left))
