"""The store where the members meet: a few keys with a compare-and-set."""

from collections.abc import Callable, Sequence
from typing import Protocol


class Store(Protocol):
    """One connection to the store. Every method raises StoreLost when the store does not answer any more."""

    def set(self, key: str, value: bytes) -> None:
        """Store a value; once this returns, the store has it."""

    def get(self, key: str) -> bytes | None:
        """The value, or None where there is none; never waits for one."""

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """The same for some keys, in few requests."""

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
        """Add 1 to a counter, which starts at 0, or 0 to look at it; gives the sum."""

    def delete(self, key: str) -> None:
        """Delete a key, if it exists."""

    def delete_all(self, outlived: Callable[[str], bool]) -> None:
        """Delete all keys of which that is said. It looks at all that there are, so it is for who tidies alone."""

    def clone(self) -> "Store":
        """Another connection to the same store, for another thread."""
