"""A log in the store: members append to it, and whoever needs it reads it from the beginning, in one order for all."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from recycle.control.sealed_store import SealedStore

_T = TypeVar("_T")


class Log(Generic[_T]):
    """What was appended under one name.

    An entry is counted first and stored then. Who dies between the two leaves a hole, which nobody may wait for.

    Args:
        sealed: the store.
        name: of the log, and the beginning of its entries' keys.
        form: what its entries are.
    """

    def __init__(self, sealed: SealedStore, name: str, form: type[_T]) -> None:
        self._sealed = sealed
        self._name = name
        self._form = form

    def append(self, entry: _T) -> None:
        """Add an entry at the end."""
        self._sealed.write(self._key(self._sealed.plain.add(self._name, 1)), entry)

    def count(self) -> int:
        """How many entries there are, holes included; they are numbered from 1."""
        return self._sealed.plain.add(self._name, 0)

    def wait(self, number: int, timeout: float) -> bool:
        """Wait for an entry, and say whether it is there. The connection is busy for that long.

        Args:
            number: of the entry.
            timeout: in seconds.
        """
        return self._sealed.plain.wait(self._key(number), timeout)

    def read(self, numbers: Iterable[int]) -> dict[int, _T | None]:
        """Some entries by their number, without those that are holes; None for one that lacks the run's seal."""
        wanted = list(numbers)
        stored = self._sealed.plain.get_many([self._key(number) for number in wanted])
        return {
            number: self._entry(number, found)
            for number, found in zip(wanted, stored, strict=True)
            if found is not None
        }

    def _entry(self, number: int, sealed: bytes) -> _T | None:
        return self._sealed.find(self._key(number), sealed, self._form)

    def _key(self, number: int) -> str:
        return f"{self._name}/{number}"


class LogReader(Generic[_T]):
    """Reads a log from its beginning, every entry once.

    Args:
        log: which.
    """

    def __init__(self, log: Log[_T]) -> None:
        self._log = log
        self._next = 1
        # By their numbers, in order.
        self._missing: dict[int, None] = {}

    @property
    def heard(self) -> int:
        """Up to which number every entry was given."""
        return next(iter(self._missing), self._next) - 1

    def news(self, timeout: float = 0.0) -> Iterator[_T]:
        """The entries that were not given before, after the next one is there or a time in seconds is over.

        An entry behind a hole ends no wait, but it is given.
        """
        if timeout:
            self._log.wait(self._next, timeout)
        end = self._log.count() + 1
        self._missing |= dict.fromkeys(range(self._next, end))
        self._next = end
        if not self._missing:
            return
        for number, entry in self._log.read(self._missing).items():
            del self._missing[number]
            if entry is not None:
                yield entry
