"""A store without a network."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

from recycle.control.membership.errors import StoreLost
from recycle.control.store import counted_log
from recycle.control.store.store import Entries, Store


class _Contents:
    """What all connections to one store in memory share."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.lost = False


class MemoryStore(Store):
    """A store in this process's memory."""

    def __init__(self, contents: _Contents | None = None) -> None:
        self._contents = contents or _Contents()

    def set(self, key: str, value: bytes) -> None:
        """See Store."""
        with self._changing() as values:
            values[key] = value

    def set_many(self, values: Mapping[str, bytes]) -> None:
        """See Store."""
        with self._changing() as stored:
            stored.update(values)

    def get(self, key: str) -> bytes | None:
        """See Store."""
        with self._changing() as values:
            return values.get(key)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """See Store."""
        with self._changing() as values:
            return [values.get(key) for key in keys]

    peek = get_many

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """See Store."""
        with self._changing() as values:
            if values.get(key, b"") == expected:
                values[key] = desired
            return values.get(key, b"")

    def keep_first(self, values: Mapping[str, bytes]) -> list[bytes]:
        """See Store."""
        with self._changing() as stored:
            return [stored.setdefault(key, value) for key, value in values.items()]

    def exchange(self, values: Mapping[str, bytes], keys: Sequence[str]) -> list[bytes | None]:
        """See Store."""
        with self._changing() as stored:
            stored.update(values)
            return [stored.get(key) for key in keys]

    def wait(self, key: str, timeout: float) -> bytes | None:
        """See Store."""
        contents = self._contents
        with self._changing() as values:
            contents.changed.wait_for(lambda: contents.lost or key in values, timeout)
            self._require_alive()
            return values.get(key)

    def hear(self, key: str, timeout: float) -> bytes | None:
        """See Store."""
        return self.wait(key, timeout)

    def add(self, key: str, amount: int) -> int:
        """See ``counted_log``."""
        with self._changing() as values:
            total = int(values.get(key, b"0")) + amount
            values[key] = str(total).encode()
            return total

    def append(self, log: str, *entries: bytes) -> None:
        """See Store."""
        counted_log.append(self, log, entries)

    def entries(self, log: str, after: int) -> Entries:
        """See Store."""
        return counted_log.entries(self, log, after)

    def wait_entry(self, log: str, after: int, timeout: float) -> bool:
        """See Store."""
        return counted_log.wait_entry(self, log, after, timeout)

    def delete(self, key: str) -> None:
        """See Store."""
        with self._changing() as values:
            values.pop(key, None)

    def delete_all(self, outlived: Callable[[str], bool]) -> None:
        """See Store."""
        with self._changing() as values:
            for key in list(filter(outlived, values)):
                del values[key]

    @property
    def keys(self) -> list[str]:
        """All that there are, in order."""
        with self._changing() as values:
            return sorted(values)

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
