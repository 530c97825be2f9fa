import threading
import time

import pytest

from harness.memory_store import MemoryStore
from harness.ports import free_port
from recycle.control.membership.errors import ControlError, StoreLost
from recycle.control.store.store import Store
from recycle.control.store.tcp_store import TorchStore, listen

BYTES = bytes(range(256))


def test_values_are_bytes_and_a_missing_one_is_no_wait(store: Store) -> None:
    assert store.get("a") is None
    store.set("a", BYTES)
    assert store.get("a") == BYTES
    store.set("a", b"")
    assert store.get("a") == b""


def test_compare_set_changes_only_what_is_as_expected(store: Store) -> None:
    assert store.compare_set("a", b"old", b"new") == b""
    assert store.get("a") is None
    assert store.compare_set("a", b"", BYTES) == BYTES
    assert store.compare_set("a", b"", b"second") == BYTES
    assert store.compare_set("a", b"other", b"second") == BYTES
    assert store.compare_set("a", BYTES, b"second") == b"second"
    assert store.compare_set("a", b"second", b"second") == b"second"


def test_of_many_who_compare_and_set_one_wins(store: Store) -> None:
    found: list[bytes] = []
    start = threading.Barrier(8)

    def propose(number: int, connection: Store) -> None:
        start.wait()
        found.append(connection.compare_set("a", b"", str(number).encode()))

    threads = [threading.Thread(target=propose, args=(number, store.clone())) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert set(found) == {store.get("a")}


def test_wait_ends_when_another_connection_sets_the_key(store: Store) -> None:
    assert store.wait("a", 0.01) is None
    other = store.clone()
    timer = threading.Timer(0.05, other.set, ("a", b""))
    timer.start()
    assert store.wait("a", 120) == b""
    # A connection is for one thread at a time, and the wait may be over before who has set the key is told so.
    timer.join()
    other.set("a", b"1")
    assert store.wait("a", 120) == b"1"


def test_bells_end_the_wait_of_whoever_hears_them_one_after_the_other(store: Store) -> None:
    assert store.hear("bells/a", 0.01) is None
    other = store.clone()
    for bell, value in (("bells/a", b"1"), ("bells/b", b""), ("other/a", b"2")):
        timer = threading.Timer(0.05, other.set, (bell, value))
        timer.start()
        assert store.hear(bell, 120) == value
        timer.join()
    assert store.hear("bells/a", 120) == b"1"
    assert store.hear("bells/c", 0.01) is None


def test_some_keys_are_set_at_once(store: Store) -> None:
    store.set("a", b"1")
    store.set_many({"a": b"2", "b": b""})
    assert store.get_many(["a", "b"]) == [b"2", b""]


def test_of_what_is_kept_the_first_stays(store: Store) -> None:
    store.set("b", b"first")
    assert store.keep_first({"a": BYTES, "b": b"2"}) == [BYTES, b"first"]
    assert store.clone().keep_first({"b": b"3", "a": b"3", "c": b"3"}) == [b"first", BYTES, b"3"]
    assert store.get_many(["a", "b", "c"]) == [BYTES, b"first", b"3"]


def test_what_is_exchanged_is_stored_before_it_is_read(store: Store) -> None:
    store.set("a", b"1")
    assert store.exchange({"a": b"2", "b": b""}, ["c", "b", "a"]) == [None, b"", b"2"]
    assert store.exchange({"c": b"3"}, []) == []
    assert store.get_many(["a", "b", "c"]) == [b"2", b"", b"3"]


def test_who_looks_for_a_missing_key_ends_nobodys_wait_for_it(store: Store) -> None:
    other, found = store.clone(), threading.Event()

    def look_and_then_set() -> None:
        for _ in range(20):
            other.get("a")
            time.sleep(0.005)
        found.set()
        other.set("a", b"1")

    looker = threading.Thread(target=look_and_then_set)
    looker.start()
    assert store.wait("a", 120) == b"1"
    assert found.is_set()
    looker.join()


def test_some_keys_are_read_at_once_whether_they_are_there_or_not(store: Store) -> None:
    store.set("a", b"1")
    store.set("b", b"")
    assert store.get_many(["b", "a"]) == store.peek(["b", "a"]) == [b"", b"1"]
    assert store.get_many(["b", "c", "a", "d"]) == [b"", None, b"1", None]
    assert store.get_all(["b", "a"]) == [b"", b"1"]
    assert store.get_all(["b", "c", "a"]) is None
    assert store.get_many([]) == store.get_all([]) == []


def test_a_log_gives_what_comes_behind_a_number_in_the_order_of_all(store: Store) -> None:
    assert store.entries("log", 0).found == []
    for entry in (b"1", b"", b"3"):
        store.append("log", entry)
    store.append("log2", b"another", b"one more")
    assert [entry for _, entry in store.entries("log2", 0).found] == [b"another", b"one more"]
    read = store.clone().entries("log", 0)
    numbers, entries = zip(*read.found, strict=True)
    assert entries == (b"1", b"", b"3")
    assert list(numbers) == sorted(numbers)
    assert read.whole == read.last == numbers[-1]
    assert [entry for _, entry in store.entries("log", numbers[0]).found] == [b"", b"3"]
    assert (store.entries("log", read.last).found, store.entries("log", read.last).last) == ([], read.last)


def test_the_wait_for_an_entry_ends_with_the_next_one(store: Store) -> None:
    for number in range(3):
        last = store.entries("log", 0).last
        store.wait_entry("log", last, 0.01)
        timer = threading.Timer(0.05, store.clone().append, ("log", b"x"))
        timer.start()
        while len(store.entries("log", 0).found) == number:
            store.wait_entry("log", last, 120)
        timer.join()


def test_keys_can_be_deleted_one_by_one_and_by_their_name(store: Store) -> None:
    for key in ("b/2", "a/1", "b/1", "b/3"):
        store.set(key, b"x")
    store.delete("b/1")
    store.delete("b/1")
    assert store.get_many(["a/1", "b/1", "b/2", "b/3"]) == [b"x", None, b"x", b"x"]
    store.delete_all(lambda key: key.startswith("b/"))
    assert store.get_many(["a/1", "b/2", "b/3"]) == [b"x", None, None]


def each_request(store: Store) -> list:
    return [
        lambda: store.set("a", b"1"),
        lambda: store.get("a"),
        lambda: store.get_all(["a"]),
        lambda: store.compare_set("a", b"", b"1"),
        lambda: store.set_many({"a": b"1"}),
        lambda: store.keep_first({"a": b"1"}),
        lambda: store.exchange({"a": b"1"}, ["a"]),
        lambda: store.wait("b", 1),
        lambda: store.hear("b/c", 1),
        lambda: store.append("log", b"1"),
        lambda: store.entries("log", 0),
        lambda: store.wait_entry("log", 0, 1),
        lambda: store.delete("a"),
        lambda: store.get_many(["a"]),
        lambda: store.delete_all(lambda _: True),
    ]


def test_a_lost_memory_store_says_so_to_every_request() -> None:
    store = MemoryStore()
    other = store.clone()
    store.lose()
    for request in each_request(other):
        with pytest.raises(StoreLost):
            request()


@pytest.mark.parametrize("number", range(13))
def test_a_lost_torch_store_says_so_to_the_first_request(number: int, served_apart) -> None:
    store, kill = served_apart
    store.set("a", b"1")
    kill()
    with pytest.raises(StoreLost):
        each_request(store)[number]()


def test_no_store_there_is_store_lost() -> None:
    port = free_port()
    with pytest.raises(StoreLost, match=f"127.0.0.1:{port}"):
        TorchStore("127.0.0.1", port)


def test_a_store_listens_on_loopback_unless_told_otherwise() -> None:
    with listen() as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", None), ("203.0.113.1", 0), ("127.0.0.1", 70000)])
def test_an_address_that_cannot_be_used_is_one_line_with_a_remedy(host: str, port: int | None) -> None:
    with listen() as taken:
        if port is None:
            port = taken.getsockname()[1]
        with pytest.raises(ControlError, match=f"store address {host}:{port} cannot be used.*give another") as caught:
            listen(host, port)
    assert "\n" not in str(caught.value)
