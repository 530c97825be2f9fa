"""A log in the store: members append to it, and whoever needs it reads it from the beginning, in one order for all."""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from recycle.control.store.sealed_store import SealedStore

_T = TypeVar("_T")


class Log(Generic[_T]):
    """What was appended under one name.

    Args:
        sealed: the store.
        name: of the log.
        form: what its entries are.
    """

    def __init__(self, sealed: SealedStore, name: str, form: type[_T]) -> None:
        self._sealed = sealed
        self._name = name
        self._form = form

    def append(self, *entries: _T) -> None:
        """Add entries at the end."""
        self._sealed.plain.append(self._name, *(self._sealed.seal(self._name, each) for each in entries))

    def read(self, after: int = 0) -> "Page[_T]":
        """The entries behind a number."""
        stored = self._sealed.plain.entries(self._name, after)
        found = [(number, self._sealed.find(self._name, entry, self._form)) for number, entry in stored.found]
        return Page(found, stored.whole, stored.last)

    def wait(self, after: int, timeout: float) -> None:
        """Wait for an entry behind a number that is the ``last`` of a page, or 0.

        The connection is busy for that long.

        Args:
            after: the number.
            timeout: in seconds.
        """
        self._sealed.plain.wait_entry(self._name, after, timeout)


class Page(NamedTuple, Generic[_T]):
    """A part of a log.

    Attributes:
        found: number and entry of each, in order; None for one that lacks the run's seal. Those that were appended in
            one step have the same number.
        whole: up to which number no other entry will come.
        last: the largest number that is known of.
    """

    found: list[tuple[int, _T | None]]
    whole: int
    last: int


class LogReader(Generic[_T]):
    """Reads a log from its beginning, every entry once.

    Args:
        log: which.

    Attributes:
        heard: up to which number every entry was given.
    """

    def __init__(self, log: Log[_T]) -> None:
        self.heard = 0
        self._log = log
        self._last = 0
        # Those behind a hole, or in the midst of what was appended in one step: number, and place among its equals.
        self._ahead: set[tuple[int, int]] = set()

    def news(self, timeout: float = 0.0) -> Iterator[_T]:
        """The entries that were not given before, after the next one is there or a time in seconds is over.

        An entry behind a hole ends no wait, but it is given.
        """
        if timeout:
            self._log.wait(self._last, timeout)
        page = self._log.read(self.heard)
        self._last = page.last
        for number, group in groupby(page.found, key=itemgetter(0)):
            entries = list(enumerate(entry for _, entry in group))
            for place, entry in entries:
                is_new = (number, place) not in self._ahead
                if number <= page.whole and place == len(entries) - 1:
                    self.heard = number
                    self._ahead = {each for each in self._ahead if each[0] > number}
                else:
                    self._ahead.add((number, place))
                if is_new and entry is not None:
                    yield entry
