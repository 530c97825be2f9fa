"""Logs in a store that has counters: an entry is counted first, and stored under its number then.

Who dies between the two leaves a hole, which nobody may wait for. Anybody who reaches the store may change the counter.
So it only says where it is worth to look: no entry is stored over another one, and hardly more is read than was stored.
"""

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Protocol

from recycle.control.store.store import Entries, Store

CHUNK = 64
"""Entries that are read at once: so wide a hole is none."""

MOST = 1 << 20
"""Entries of a log: more than all members of a view tell, each again and again in a long wait."""


class Counting(Store, Protocol):
    """A store that has counters."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which starts at 0; gives the sum."""


def append(store: Counting, log: str, entries: Sequence[bytes]) -> None:
    """See Store."""
    # What is no number cannot be counted on.
    counts = _counted(store, log) is not None
    for entry in entries:
        number = store.add(log, 1) if counts else 0
        if not 0 < number <= MOST or not _store(store, log, number, entry):
            # A stranger has changed the counter.
            number = entries_behind(store, log, 0).last + 1
            while not _store(store, log, number, entry):
                number += 1
            store.set(log, str(number).encode())
            counts = True


def entries(store: Store, log: str, after: int) -> Entries:
    """See Store."""
    counted = _counted(store, log)
    if counted is None or counted < after:
        return entries_behind(store, log, after)
    found: dict[int, bytes] = {}
    first = after + 1
    while first <= counted and (chunk := _read(store, log, range(first, min(first + CHUNK, counted + 1)))):
        found |= chunk
        first += CHUNK
    # Behind a hole that a stranger has made, whoever counts goes on.
    last, first = counted, first + CHUNK
    while last >= first and (chunk := _read(store, log, range(max(first, last + 1 - CHUNK), last + 1))):
        found |= chunk
        last -= CHUNK
    top = max(found, default=after)
    return _page(found, after, counted if counted <= top + CHUNK else top)


def entries_behind(store: Store, log: str, after: int) -> Entries:
    """The same where the counter says nothing: up to the first hole that is as wide as none is.

    Args:
        store: where the log is.
        log: which.
        after: the number behind which it is read.
    """
    found: dict[int, bytes] = {}
    first = after + 1
    while first <= MOST and (chunk := _read(store, log, range(first, first + CHUNK))):
        found |= chunk
        first += CHUNK
    return _page(found, after, max(found, default=after))


def wait_entry(store: Store, log: str, after: int, timeout: float) -> bool:
    """See Store."""
    return store.wait(_key(log, after + 1), timeout) is not None


def _page(found: dict[int, bytes], after: int, last: int) -> Entries:
    whole = next(number for number in count(after) if number + 1 not in found)
    return Entries(sorted(found.items()), whole, last)


def _counted(store: Store, log: str) -> int | None:
    """How many entries were counted; None where that cannot be."""
    stored = store.get(log)
    if stored is None:
        return 0
    return int(stored) if stored.isdigit() and len(stored) <= len(str(MOST)) and int(stored) <= MOST else None


def _read(store: Store, log: str, numbers: Iterable[int]) -> dict[int, bytes]:
    wanted = [*numbers]
    stored = store.get_many([_key(log, each) for each in wanted])
    return {number: entry for number, entry in zip(wanted, stored, strict=True) if entry is not None}


def _store(store: Store, log: str, number: int, entry: bytes) -> bool:
    return store.compare_set(_key(log, number), b"", entry) == entry


def _key(log: str, number: int) -> str:
    return f"{log}/{number}"
