"""The store where the members meet: a few keys with a compare-and-set."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, Self

from recycle.control.errors import StoreLost


class Store(Protocol):
    """One connection to the store. Every method raises StoreLost when the store does not answer any more."""

    def set(self, key: str, value: bytes) -> None:
        """Store a value; once this returns, the store has it."""

    def get(self, key: str) -> bytes | None:
        """The value, or None where there is none; never waits for one."""

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Store ``desired`` if what is there is ``expected``, in one step.

        Args:
            key: where.
            expected: what must be there; empty means that nothing may be there.
            desired: what shall be there.

        Returns:
            What is there afterwards; empty if nothing is.
        """

    def wait(self, key: str, timeout: float) -> bool:
        """Wait until a key exists, and say whether it does. The connection is busy for that long.

        Args:
            key: which key.
            timeout: in seconds.
        """

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which starts at 0, in one step; gives the sum."""

    def delete(self, key: str) -> None:
        """Delete a key, if it exists."""

    def keys(self, prefix: str) -> list[str]:
        """All keys that begin with a prefix, in order."""

    def clone(self) -> "Store":
        """Another connection to the same store, for another thread."""


class _Contents:
    """What all connections to one store in memory share."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.lost = False


class MemoryStore:
    """A store in this process's memory, for tests and for looking at the protocol without a network."""

    def __init__(self, contents: _Contents | None = None) -> None:
        self._contents = contents or _Contents()

    def set(self, key: str, value: bytes) -> None:
        """See Store."""
        with self._changing() as values:
            values[key] = value

    def get(self, key: str) -> bytes | None:
        """See Store."""
        with self._changing() as values:
            return values.get(key)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """See Store."""
        with self._changing() as values:
            if values.get(key, b"") == expected:
                values[key] = desired
            return values.get(key, b"")

    def wait(self, key: str, timeout: float) -> bool:
        """See Store."""
        contents = self._contents
        with self._changing() as values:
            contents.changed.wait_for(lambda: contents.lost or key in values, timeout)
            self._require_alive()
            return key in values

    def add(self, key: str, amount: int) -> int:
        """See Store."""
        with self._changing() as values:
            total = int(values.get(key, b"0")) + amount
            values[key] = str(total).encode()
            return total

    def delete(self, key: str) -> None:
        """See Store."""
        with self._changing() as values:
            values.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        """See Store."""
        with self._changing() as values:
            return sorted(key for key in values if key.startswith(prefix))

    def clone(self) -> Self:
        """See Store."""
        return type(self)(self._contents)

    def lose(self) -> None:
        """From now on every connection finds the store gone."""
        contents = self._contents
        with contents.changed:
            contents.lost = True
            contents.changed.notify_all()

    @contextmanager
    def _changing(self) -> Iterator[dict[str, bytes]]:
        with self._contents.changed:
            self._require_alive()
            yield self._contents.values
            self._contents.changed.notify_all()

    def _require_alive(self) -> None:
        if self._contents.lost:
            raise StoreLost("the store in memory was taken away")
