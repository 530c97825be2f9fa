"""The store of a run on one machine: it has the store's contract (test_store.py), and no other user gets to it."""

import multiprocessing
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.memory_store import MemoryStore
from harness.processes import processes
from harness.sockets import listening
from harness.stores import local_store
from harness.strangers import as_stranger, needs_root
from recycle.control.membership.doors import HostDoor
from recycle.control.membership.errors import ControlError, StoreLost
from recycle.control.store import host_store
from recycle.control.store import local_store as module
from recycle.control.store.host_requests import Request, framed
from recycle.control.store.local_store import LocalStore, door_of_store
from tests.control.test_store import each_request

FORK = multiprocessing.get_context("fork")
Eventually = Callable[[Callable[[], bool]], None]


@pytest.fixture
def door() -> HostDoor:
    return door_of_store(uuid.uuid4().hex)


@pytest.fixture
def lose(door: HostDoor) -> Iterator[Callable[[], None]]:
    """A store at the door; gives what loses it."""
    with local_store(door) as lose:
        yield lose


def holders(door: HostDoor) -> set[int]:
    """The processes that listen at a door."""
    names = {*door.names()}
    return {each for each in processes() for found in listening([each]) if found.address in names}


@pytest.mark.parametrize("number", range(15))
def test_a_lost_store_says_so_to_the_first_request_and_stays_lost_to_who_found_it_so(
    number: int, door: HostDoor, lose: Callable[[], None]
) -> None:
    store = LocalStore(door)
    store.set("a", b"1")
    lose()
    with pytest.raises(StoreLost, match="the store at a socket of this machine does not answer"):
        each_request(store)[number]()
    with local_store(door):
        with pytest.raises(StoreLost):
            each_request(store)[number]()
        assert LocalStore(door).get("a") is None


def test_the_loss_of_the_store_ends_a_wait(door: HostDoor, lose: Callable[[], None], eventually: Eventually) -> None:
    store, other = LocalStore(door), LocalStore(door)
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(store.wait, "a", 600)
        eventually(waited.running)
        other.set("b", b"")
        lose()
        with pytest.raises(StoreLost):
            waited.result()


def test_where_no_store_is_there_is_none(door: HostDoor) -> None:
    with pytest.raises(StoreLost, match="does not answer"):
        LocalStore(door)


def test_a_store_that_is_stopped_for_long_is_lost_and_one_that_goes_on_has_what_it_had(
    door: HostDoor, lose: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOPPED", 0.2)
    LocalStore(door).set("a", b"1")
    store = LocalStore(door)
    (process,) = holders(door) - {os.getpid()}
    os.kill(process, signal.SIGSTOP)
    with pytest.raises(StoreLost):
        store.get("a")
    os.kill(process, signal.SIGCONT)
    monkeypatch.undo()
    assert LocalStore(door).get("a") == b"1"


def test_a_pause_of_the_whole_run_loses_no_store(
    door: HostDoor, lose: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_store, "SLICE", 0.1)
    monkeypatch.setattr(module, "STOPPED", 2.0)
    LocalStore(door).set("a", b"1")
    (store,) = holders(door) - {os.getpid()}
    asks, found = FORK.Event(), FORK.Queue()

    def ask() -> None:
        connection = LocalStore(door)
        asks.set()
        while not asks.is_set() or connection.wait("b", 0.0) is None:
            pass
        found.put(connection.get("a"))

    member = FORK.Process(target=ask)
    member.start()
    asks.wait()
    LocalStore(door).set("b", b"")
    for number in (signal.SIGSTOP, signal.SIGCONT):
        # Who asks first: it finds that its time was over before the store can answer.
        for process in (member.pid, store):
            assert process is not None
            os.kill(process, number)
        time.sleep(3.0 if number == signal.SIGSTOP else 0.0)
    assert found.get(timeout=120) == b"1"
    member.join()


def test_an_answer_that_was_not_read_is_not_taken_for_the_next_one(
    door: HostDoor, lose: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(*_: object) -> bytes:
        raise Interrupted

    store = LocalStore(door)
    store.set_many({"a": b"1", "b": b"2"})
    with monkeypatch.context() as patch:
        patch.setattr(host_store, "_receive", interrupt)
        with pytest.raises(Interrupted):
            store.get("a")
    assert store.get("b") == b"2"


def test_there_is_one_store_of_a_run(door: HostDoor, lose: Callable[[], None]) -> None:
    with pytest.raises(OSError, match="another process of this run listens there"):
        door.hold(0.0)
    lose()
    door.hold(0.0).close()


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff", b"\0\0\0\1\xc1"], ids=["too long", "no request"])
def test_what_is_no_request_ends_the_connection_of_who_sent_it(door: HostDoor, lose: object, sent: bytes) -> None:
    store = LocalStore(door)
    with door.connect() as other:
        other.sendall(sent)
        assert other.recv(1) == b""
    assert store.get("a") is None


@pytest.mark.parametrize(
    "request_", [Request("append"), Request("wait", timeout=1.0), Request("compare_set", ("a",))], ids=str
)
def test_a_request_that_no_store_can_carry_out_is_refused_and_others_are_answered(
    door: HostDoor, lose: object, request_: Request
) -> None:
    store = LocalStore(door)
    with pytest.raises(ControlError, match="argument"):
        store._ask(request_)
    assert store.get("a") is None


def test_who_leaves_in_a_wait_or_waits_in_vain_is_forgotten(door: HostDoor, lose: object) -> None:
    store = LocalStore(door)
    for _ in range(3):
        gone = door.connect()
        message = framed(Request("wait", ("a",), timeout=600.0))
        gone.sendall(message)
        gone.close()
    assert store.wait("a", 0.01) is None
    store.set("a", b"1")
    assert store.wait("a", 600) == b"1"


@needs_root
def test_no_other_user_is_heard_however_many_connections_it_makes_nor_takes_the_stores_place(
    door: HostDoor, lose: Callable[[], None], eventually: Eventually
) -> None:
    held: list[socket.socket] = []
    request = framed(Request("set_many", ("a",), (b"forged",)))

    def attack() -> None:
        for _ in range(2000):
            with suppress(OSError):
                other = socket.socket(socket.AF_UNIX)
                held.append(other)
                other.connect(next(door.names()))
                other.sendall(request)

    with as_stranger(attack):
        store = LocalStore(door)
        assert store.get("a") is None
        store.set("b", b"1")

    def take_place() -> None:
        other, full = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        other.bind(next(door.names()))
        other.listen(0)
        full.connect(next(door.names()))
        held.extend([other, full])

    lose()
    with as_stranger(take_place), ThreadPoolExecutor(1) as pool:
        with pytest.raises(StoreLost):
            LocalStore(door, 0.1)
        waiting = pool.submit(LocalStore, door)
        eventually(waiting.running)
        with local_store(door):
            waiting.result().set("a", b"mine")
            assert LocalStore(door).get("a") == b"mine"


KEYS = st.sampled_from(["a", "b", "a/1", "b/1"])
LOGS = st.sampled_from(["log", "other"])
VALUES = st.binary(min_size=1, max_size=2)
OPERATIONS = st.one_of(
    st.tuples(st.just("set"), KEYS, VALUES),
    st.tuples(st.just("compare_set"), KEYS, VALUES, VALUES),
    st.tuples(st.just("get_many"), st.lists(KEYS, max_size=3)),
    st.tuples(st.just("keep_first"), st.dictionaries(KEYS, VALUES, max_size=2)),
    st.tuples(st.just("append"), LOGS, VALUES, VALUES),
    st.tuples(st.just("entries"), LOGS, st.integers(0, 5)),
    st.tuples(st.just("wait"), KEYS, st.just(0.0)),
    st.tuples(st.just("hear"), KEYS, st.just(0.0)),
    st.tuples(st.just("wait_entry"), LOGS, st.integers(0, 5), st.just(0.0)),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("delete_all"), st.sampled_from([{"a", "log"}, {"b", "b/1", "other"}])),
)


@pytest.fixture(scope="module")
def served() -> Iterator[HostDoor]:
    door = door_of_store(uuid.uuid4().hex)
    with local_store(door):
        yield door


@given(operations=st.lists(OPERATIONS, max_size=12))
def test_it_answers_as_the_store_in_memory_of_the_tests_does(served: HostDoor, operations: list[tuple]) -> None:
    store, model = LocalStore(served), MemoryStore()
    store.delete_all(lambda _: True)
    for name, *given_ in operations:
        if name == "delete_all":
            (gone,) = given_
            store.delete_all(gone.__contains__)
            # The model keeps the entries of a log beside its keys.
            model.delete_all(lambda key, gone=gone: key in gone or key.rpartition("/")[0] in gone & {"log", "other"})
        else:
            assert getattr(store, name)(*given_) == getattr(model, name)(*given_), name
