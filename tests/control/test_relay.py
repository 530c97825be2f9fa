"""A relay over a store: it has the store's contract (test_store.py), asks less, and is missed by nobody."""

import asyncio
import contextlib
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.memory_store import MemoryStore
from harness.relays import relays
from recycle.control.membership.doors import HostDoor
from recycle.control.membership.errors import ControlError, StoreLost
from recycle.control.store.host_requests import Request
from recycle.control.store.relay import Relay, door_of
from recycle.control.store.relayed_store import RelayedStore

MEMBERS = 8
EVERYBODY = range(MEMBERS)


class Counting(MemoryStore):
    """Counts its requests; each waits until it may be answered."""

    def __init__(self, of: "Counting | None" = None) -> None:
        super().__init__(of and of._contents)
        self.asked: Counter[str] = of.asked if of else Counter()
        self.may_go: threading.Event = of.may_go if of else threading.Event()

    def clone(self) -> "Counting":
        return Counting(self)

    def _count(self, name: str) -> None:
        self.asked[name] += 1
        assert self.may_go.wait(120)

    def append(self, log: str, *entries: bytes) -> None:
        self._count("append")
        MemoryStore(self._contents).append(log, *entries)

    def set_many(self, values: Mapping[str, bytes]) -> None:
        self._count("set")
        super().set_many(values)

    def get_many(self, keys: list[str]) -> list[bytes | None]:
        self._count("get")
        return super().get_many(keys)

    def wait(self, key: str, timeout: float) -> bytes | None:
        self._count("wait")
        return super().wait(key, timeout)


@pytest.fixture
def contents() -> Counting:
    made = Counting()
    made.may_go.set()
    return made


@pytest.fixture
def door() -> HostDoor:
    return door_of(uuid.uuid4().hex, "")


def through(door: HostDoor) -> RelayedStore:
    """A connection that has nothing but the relay, once that is there."""

    def connect() -> Counting:
        raise StoreLost("there is nothing but the relay")

    while True:
        with contextlib.suppress(StoreLost):
            return RelayedStore(door, connect)


def test_what_members_ask_at_the_same_time_is_asked_once_or_together(
    door: HostDoor,
    contents: Counting,
    eventually: Callable[[Callable[[], bool]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take, arrived = Relay.take, []

    def note(relay: Relay, request: Any, caller: Any) -> None:
        arrived.append(request)
        take(relay, request, caller)

    monkeypatch.setattr(Relay, "take", note)
    with relays({door: contents.clone}), ThreadPoolExecutor(MEMBERS) as pool:
        members = [through(door) for _ in EVERYBODY]
        arrived.clear()
        waiting = [pool.submit(each.wait, "verdict", 120) for each in members]
        eventually(lambda: len(arrived) == MEMBERS)
        contents.set("verdict", b"1")
        assert [each.result() for each in waiting] == [b"1"] * MEMBERS
        # A wait may be over once before there was something.
        assert contents.asked["wait"] <= 2
        for request, kind in ((lambda each: each.append("log", b"x"), "append"), (lambda each: each.get("a"), "get")):
            arrived.clear()
            contents.asked.clear()
            contents.may_go.clear()
            # The first one is asked at once, and all others when it is answered.
            first = pool.submit(request, members[0])
            eventually(lambda: contents.asked.total() == 1)
            others = [pool.submit(request, each) for each in members[1:]]
            eventually(lambda: len(arrived) == MEMBERS)
            contents.may_go.set()
            for each in (first, *others):
                each.result()
            assert contents.asked == {kind: 2}
        assert len(members[0].entries("log", 0).found) == MEMBERS


def test_what_is_appended_waits_for_more_and_is_appended_in_one_request(
    door: HostDoor, contents: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = asyncio.sleep

    async def until_all_have_come(_: float) -> None:
        while len(arrived) < MEMBERS:
            await sleep(0.001)

    take, arrived = Relay.take, []
    with relays({door: contents.clone}), ThreadPoolExecutor(MEMBERS) as pool:
        members = [through(door) for _ in EVERYBODY]
        contents.asked.clear()
        monkeypatch.setattr(Relay, "take", lambda *asked: (arrived.append(asked), take(*asked)))
        monkeypatch.setattr("recycle.control.store.relay.asyncio.sleep", until_all_have_come)
        list(pool.map(lambda each: each.append("log", b"x"), members))
        assert contents.asked == {"append": 1}
    assert len(contents.entries("log", 0).found) == MEMBERS


def test_who_comes_after_the_answer_asks_anew(door: HostDoor, contents: Counting) -> None:
    with relays({door: contents.clone}):
        one, other = through(door), through(door)
        for number in range(5):
            one.set("a", str(number).encode())
            assert other.get("a") == other.wait("a", 120) == str(number).encode()
            other.delete("a")
            assert one.get("a") is None
            assert one.wait("a", 0.01) is None


def test_nobody_misses_a_relay_that_has_ended_nor_waits_for_one_that_is_not_there(
    door: HostDoor, contents: Counting, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    store = RelayedStore(door, contents.clone)
    store.set("a", b"1")
    with ThreadPoolExecutor(1) as pool:
        with relays({door: contents.clone}):
            other = through(door)
            assert other.get("a") == b"1"
            near = RelayedStore(door, contents.clone)
            contents.asked.clear()
            waited = pool.submit(near.wait, "b", 120)
            eventually(lambda: contents.asked["wait"] == 1)
        contents.set("b", b"2")
        assert waited.result() == b"2"
    assert near.get("a") == b"1"
    with pytest.raises(StoreLost, match="nothing but the relay"):
        other.get("a")


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff", b"\0\0\0\1\xc1"], ids=["too long", "no request"])
def test_what_is_no_request_ends_the_connection_of_who_sent_it(door: HostDoor, contents: Counting, sent: bytes) -> None:
    with relays({door: contents.clone}), socket.socket(socket.AF_UNIX) as stranger:
        member = through(door)
        stranger.connect(next(door.names()))
        stranger.sendall(sent)
        assert stranger.recv(1) == b""
        assert member.get("a") is None


@pytest.mark.parametrize("request_", [Request("delete"), Request("append"), Request("wait", timeout=1.0)], ids=str)
def test_a_request_that_no_store_can_carry_out_is_refused_and_others_are_answered(
    door: HostDoor, contents: Counting, request_: Request
) -> None:
    with relays({door: contents.clone}):
        member = through(door)
        answer = member._relay.ask(request_)
        assert answer is not None
        assert answer.refusal
        assert member.get("a") is None


def test_after_an_error_that_nobody_expects_the_next_request_is_answered(
    door: HostDoor, contents: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(store: Counting, keys: list[str]) -> list[bytes | None]:
        monkeypatch.undo()
        raise KeyError("an odd answer")

    with relays({door: contents.clone}):
        member = through(door)
        monkeypatch.setattr(Counting, "get_many", fail)
        with pytest.raises(StoreLost):
            member.get("a")
        contents.set("a", b"1")
        assert through(door).get("a") == b"1"


def test_another_relay_takes_the_name_of_one_that_has_ended(door: HostDoor, contents: Counting) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.ExitStack())
        first.enter_context(relays({door: contents.clone}))
        # It does not get the door before the first one has ended.
        stack.enter_context(relays({door: contents.clone}))
        first.close()
        assert through(door).get("a") is None


@pytest.mark.parametrize("turns", range(8))
def test_a_relay_that_ends_closes_what_connects_meanwhile(tmp_path: Path, contents: Counting, turns: int) -> None:
    """Whatever the event loop has done of it when the end comes."""

    async def end_after_so_many_turns(listener: socket.socket, member: socket.socket) -> None:
        served = asyncio.create_task(Relay(contents.clone).serve(listener))
        await asyncio.sleep(0.01)
        member.connect(listener.getsockname())
        for _ in range(turns):
            await asyncio.sleep(0)
        served.cancel()
        for _ in range(8):
            await asyncio.sleep(0)

    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as member:
        listener.bind(str(tmp_path / "door"))
        listener.listen()
        asyncio.run(end_after_so_many_turns(listener, member))
        listener.close()
        member.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert member.recv(1) == b""


def test_a_store_that_is_lost_or_refuses_says_so_through_the_relay(
    door: HostDoor, contents: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Counting, values: dict[str, bytes]) -> None:
        raise ControlError("too large")

    with relays({door: contents.clone}):
        store = through(door)
        with monkeypatch.context() as patch:
            patch.setattr(Counting, "set_many", refuse)
            with pytest.raises(ControlError, match="too large"):
                store.set("a", b"1")
        store.set("a", b"1")
        contents.lose()
        for request in (lambda: store.get("a"), lambda: store.wait("a", 1), lambda: store.delete("a")):
            with pytest.raises(StoreLost, match="taken away"):
                request()
