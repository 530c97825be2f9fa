"""Logs with writers that die between an entry's number and the entry, and with several writers at once."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.memory_store import MemoryStore
from recycle.control.store.counted_log import CHUNK, MOST
from recycle.control.store.etcd_store import EtcdStore
from recycle.control.store.host_store import HostStore
from recycle.control.store.log import Log, LogReader
from recycle.control.store.sealed_store import SealedStore
from recycle.control.store.store import Entries, Store

NAME = "log"


@pytest.fixture
def sealed(store: Store) -> SealedStore:
    return SealedStore(store, "token")


class BoundedStore(MemoryStore):
    """A store that is asked for few keys at once, and refuses to count on what is no number, as torch's does."""

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        assert len(keys) <= CHUNK
        return super().get_many(keys)

    def add(self, key: str, amount: int) -> int:
        assert (self.get(key) or b"0").lstrip(b"-").isdigit()
        return super().add(key, amount)


def log_of(sealed: SealedStore) -> Log[int]:
    return Log(sealed, NAME, int)


def test_entries_are_read_once_and_in_their_order(sealed: SealedStore) -> None:
    log = log_of(sealed)
    reader = LogReader(log)
    assert list(reader.news()) == []
    log.append(5)
    log.append(3)
    assert list(reader.news(60)) == [5, 3]
    assert list(reader.news(0.01)) == []
    log.append(9)
    assert list(reader.news()) == [9]
    assert list(LogReader(log).news()) == [5, 3, 9]


def test_the_wait_ends_with_the_next_entry(store: Store, sealed: SealedStore) -> None:
    with ThreadPoolExecutor(1) as pool:
        other = LogReader(log_of(SealedStore(store.clone(), "token")))
        waited = pool.submit(lambda: list(other.news(60)))
        log_of(sealed).append(7)
        assert waited.result() == [7]


def test_a_hole_ends_no_reading_and_is_read_when_it_is_filled(store: Store, sealed: SealedStore) -> None:
    if isinstance(store, EtcdStore | HostStore):
        pytest.skip("etcd counts and stores in one step")
    log = log_of(sealed)
    reader = LogReader(log)
    log.append(1)
    number = store.add(NAME, 1)
    log.append(3)
    assert list(reader.news(60)) == [1, 3]
    assert reader.heard == 1
    store.set(f"{NAME}/{number}", sealed.seal(NAME, 2))
    assert list(reader.news(0.01)) == [2]
    assert reader.heard == 3


def test_what_lacks_the_seal_is_passed_over(store: Store, sealed: SealedStore) -> None:
    log_of(SealedStore(store.clone(), "another token")).append(1)
    log_of(sealed).append(2)
    reader = LogReader(log_of(sealed))
    assert list(reader.news()) == [2]
    assert list(reader.news()) == []


def test_what_was_not_taken_is_given_again_and_was_not_heard(sealed: SealedStore) -> None:
    log = log_of(sealed)
    for entry in (1, 2, 3):
        log.append(entry)
    reader = LogReader(log)
    assert next(reader.news()) == 1
    heard = reader.heard
    assert [entry for number, entry in log.read().found if number > heard] == [2, 3]
    assert list(reader.news()) == [2, 3]
    assert reader.heard == log.read().last


def test_what_was_appended_in_one_step_is_heard_when_all_of_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = SealedStore(MemoryStore(), "token")
    together = Entries([(4, sealed.seal(NAME, 1)), (4, sealed.seal(NAME, 2)), (7, sealed.seal(NAME, 3))], 7, 7)
    monkeypatch.setattr(MemoryStore, "entries", lambda *_: together)
    reader = LogReader(log_of(sealed))
    assert (next(reader.news()), reader.heard) == (1, 0)
    assert (next(reader.news()), reader.heard) == (2, 4)
    assert (list(reader.news())[-1], reader.heard) == (3, 7)


def test_writers_at_once_lose_nothing(store: Store) -> None:
    barrier = threading.Barrier(8)

    def write(entry: int) -> None:
        log = log_of(SealedStore(store.clone(), "token"))
        barrier.wait()
        log.append(entry)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert sorted(LogReader(log_of(SealedStore(store, "token"))).news()) == list(range(8))


@given(st.lists(st.sampled_from(["append", "hole", "fill", "read"]), max_size=40))
def test_a_reader_gets_every_entry_once_whatever_writers_do(steps: list[str]) -> None:
    store = MemoryStore()
    sealed = SealedStore(store, "token")
    log = log_of(sealed)
    reader, given_out, holes, written = LogReader(log), list[int](), list[int](), set[int]()
    for step in [*steps, "read"]:
        if step == "append":
            log.append(store.add(NAME, 0) + 1)
            written.add(store.add(NAME, 0))
        elif step == "hole":
            holes.append(store.add(NAME, 1))
        elif step == "fill" and holes:
            number = holes.pop()
            store.set(f"{NAME}/{number}", sealed.seal(NAME, number))
            written.add(number)
        elif step == "read":
            given_out += reader.news()
            assert reader.heard == min(holes, default=store.add(NAME, 0) + 1) - 1
    assert sorted(given_out) == sorted(written)


COUNTERS = (b"abc", b"", b"-5", b"0", b"3", b"40", b"5000", b"1000000000000", b"\xb2")


@given(st.lists(st.sampled_from([None, *COUNTERS]), max_size=30))
def test_what_is_appended_is_read_once_whatever_a_stranger_has_made_of_the_counter(
    counters: list[bytes | None],
) -> None:
    store = BoundedStore()
    log = log_of(SealedStore(store, "token"))
    reader = LogReader(log)
    for entry, counter in enumerate(counters):
        if counter is None:
            store.delete(NAME)
        else:
            store.set(NAME, counter)
        log.append(entry)
        assert list(reader.news()) == [entry]
        assert list(reader.news()) == []


def test_a_log_into_which_a_stranger_writes_is_read_to_its_end() -> None:
    store = BoundedStore()
    sealed = SealedStore(store, "token")
    log = log_of(sealed)
    reader = LogReader(log)
    for number in range(1, 200):
        store.set(f"{NAME}/{number}", b"garbage")
    log.append(1)
    store.set(f"{NAME}/{MOST + 5}", b"garbage")
    assert list(reader.news()) == [1]
    store.set(NAME, str(MOST).encode())
    log.append(2)
    assert list(reader.news()) == [2]


class CountingStore(MemoryStore):
    """Counts the keys that are looked at."""

    looks = 0

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """See Store."""
        self.looks += len(keys)
        return super().get_many(keys)


def test_to_add_to_what_ten_thousand_ranks_have_told_ten_times_nothing_is_read() -> None:
    store, told = CountingStore(), 100_000
    store.set_many({f"{NAME}/{number}": b"entry" for number in range(1, told + 1)} | {NAME: str(told).encode()})
    store.append(NAME, b"another")
    assert store.get(f"{NAME}/{told + 1}") == b"another"
    assert not store.looks
