"""Logs in a store that has counters: an entry is counted first, and stored under its number then.

Who dies between the two leaves a hole, which nobody may wait for.
"""

from collections.abc import Sequence
from itertools import takewhile

from recycle.control.store.store import Entries, Store


def append(store: Store, log: str, entries: Sequence[bytes]) -> None:
    """See Store."""
    store.set_many({_key(log, store.add(log, 1)): entry for entry in entries})


def entries(store: Store, log: str, after: int) -> Entries:
    """See Store."""
    last = store.add(log, 0)
    numbers = range(after + 1, last + 1)
    stored = store.get_many([_key(log, each) for each in numbers]) if numbers else []
    found = [(number, entry) for number, entry in zip(numbers, stored, strict=True) if entry is not None]
    whole = after + sum(1 for _ in takewhile(lambda entry: entry is not None, stored))
    return Entries(found, whole, last)


def wait_entry(store: Store, log: str, after: int, timeout: float) -> bool:
    """See Store."""
    return store.wait(_key(log, after + 1), timeout) is not None


def _key(log: str, number: int) -> str:
    return f"{log}/{number}"
