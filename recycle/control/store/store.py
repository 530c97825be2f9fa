"""The store where the members meet: a few keys with a compare-and-set."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec


class Entries(msgspec.Struct, frozen=True):
    """What was appended to a log.

    Attributes:
        found: number and content of each, in order. Those that were appended in one step have the same number.
        whole: up to which number no other entry will come.
        last: the largest number that is known of.
    """

    found: list[tuple[int, bytes]]
    whole: int
    last: int


class Store(Protocol):
    """One connection to the store. Every method raises StoreLost when the store does not answer any more.

    What a store cannot do in a better way is made of the rest.
    """

    def set(self, key: str, value: bytes) -> None:
        """Store a value; once this returns, the store has it."""
        self.set_many({key: value})

    def set_many(self, values: Mapping[str, bytes]) -> None:
        """The same for some keys, in few requests."""

    def get(self, key: str) -> bytes | None:
        """The value, or None where there is none; never waits for one."""
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """The same for some keys, in few requests."""

    def get_all(self, keys: Sequence[str]) -> list[bytes] | None:
        """The same if all are there; else None, for less where the store can."""
        found = [each for each in self.get_many(keys) if each is not None]
        return found if len(found) == len(keys) else None

    def peek(self, keys: Sequence[str]) -> list[bytes | None]:
        """The same, for less where the store can; what was stored a moment ago may be missing then."""
        return self.get_many(keys)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Store ``desired`` if what is there is ``expected``, in one step.

        Args:
            key: where.
            expected: what must be there; empty means that nothing may be there.
            desired: what shall be there.

        Returns:
            What is there afterwards; empty if nothing is.
        """

    def keep_first(self, values: Mapping[str, bytes]) -> list[bytes]:
        """Store each value where nothing is; gives what is there afterwards. In one request where the store can."""
        return [self.compare_set(key, b"", value) for key, value in values.items()]

    def exchange(self, values: Mapping[str, bytes], keys: Sequence[str]) -> list[bytes | None]:
        """Store some values, and read some keys after that. In one request where the store can.

        Args:
            values: what is stored, by key; at least one.
            keys: what is read.
        """
        self.set_many(values)
        return self.get_many(keys)

    def wait(self, key: str, timeout: float) -> bytes | None:
        """Wait until a key exists; gives its value, or None if it does not. The connection is busy for that long.

        Args:
            key: which key.
            timeout: in seconds.
        """

    def hear(self, key: str, timeout: float) -> bytes | None:
        """The same for a bell, for less where the store can: it may overlook what is there, and give what was before.

        A bell is a key beside few others, up to the last slash of its name, and all of them are left where they are for
        as long as anybody waits for one. It is heard when it is set during the wait.

        Args:
            key: which bell.
            timeout: in seconds.
        """
        return self.wait(key, timeout)

    def append(self, log: str, *entries: bytes) -> None:
        """Add entries at the end of a log, which is empty at first; in one step where the store can."""

    def entries(self, log: str, after: int) -> Entries:
        """The entries of a log whose numbers are greater than one; that of the first is greater than 0."""

    def wait_entry(self, log: str, after: int, timeout: float) -> bool:
        """Wait until a log has entries behind a number, and say whether it has. The connection is busy for that long.

        Args:
            log: which log.
            after: the ``last`` of what was read, or 0.
            timeout: in seconds.
        """

    def delete(self, key: str) -> None:
        """Delete a key, if it exists."""

    def delete_all(self, outlived: Callable[[str], bool]) -> None:
        """Delete all keys of which that is said. It looks at all that there are, so it is for who tidies alone."""

    def clone(self) -> "Store":
        """Another connection to the same store, for another thread."""
