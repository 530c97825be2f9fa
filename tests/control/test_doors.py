"""Who is let in at a door, and what strangers in any number can do there."""

import errno
import os
import resource
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from harness.refusing_listener import RefusingListener
from harness.started import wait_until
from harness.strangers import STRANGER, as_stranger, needs_root
from recycle.control.membership import doors
from recycle.control.membership.addresses import listen_at
from recycle.control.membership.doors import MOST, Address, Door, Guest, HostDoor, knock

KINDS = [socket.SOCK_STREAM, socket.SOCK_SEQPACKET]


@pytest.fixture
def token() -> str:
    return secrets.token_hex(8)


class Served:
    """A door that a thread serves; notes who was let in."""

    def __init__(self, listener: socket.socket, token: str) -> None:
        self.guests: list[Guest] = []
        self.door = Door([listener], token, "test")
        self._listener = listener
        self._is_over = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._is_over:
            self.guests.extend(self.door.admit(0.01))

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        self.door.close()
        self._listener.close()
        for each in self.guests:
            each.connection.close()


def enter(address: Address, token: str, purpose: str = "test") -> Guest:
    return knock(address, token, purpose, 60.0, 60.0)


@pytest.fixture(params=["host", "network"])
def address(request: pytest.FixtureRequest, token: str) -> Iterator[Address]:
    if request.param == "host":
        listener = HostDoor(token, "test").claim()
        assert listener is not None
    else:
        listener = listen_at("127.0.0.1", 0)
    with closing(Served(listener, token)) as served:
        request.node.served = served
        yield HostDoor(token, "test") if request.param == "host" else listener.getsockname()


def served(request: pytest.FixtureRequest, count: int) -> list[Guest]:
    """Those who were let in, as soon as they are so many."""
    guests: list[Guest] = request.node.served.guests
    wait_until(lambda: len(guests) == count)
    return guests


def count_open() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def raw(address: Address) -> socket.socket:
    return address.connect(60.0) if isinstance(address, HostDoor) else socket.create_connection(address)


def test_both_sides_get_the_same_session_and_each_connection_another(address: Address, token: str, request) -> None:
    with enter(address, token).connection as first, enter(address, token).connection as second:
        first.sendall(b"first")
        second.sendall(b"second")
        guests = served(request, 2)
        assert {each.connection.recv(10) for each in guests} == {b"first", b"second"}
        assert len({each.session for each in guests}) == 2


@pytest.mark.parametrize(("token_of", "purpose"), [("another", "test"), ("", "other")])
def test_without_the_token_or_for_another_purpose_nobody_is_let_in(address, token, token_of, purpose, request) -> None:
    with pytest.raises(ConnectionError):
        enter(address, token_of or token, purpose)
    assert not request.node.served.guests


def test_a_door_without_the_token_is_not_believed(token: str) -> None:
    with listen_at("127.0.0.1", 0) as listener:

        def pretend() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(bytes(16))
                connection.recv(48)
                connection.sendall(bytes(32))

        impostor = threading.Thread(target=pretend)
        impostor.start()
        with pytest.raises(ConnectionError, match="has not got this run's token"):
            enter(listener.getsockname(), token)
        impostor.join()


def test_strangers_in_any_number_that_say_nothing_keep_nobody_out(address: Address, token: str, request) -> None:
    before = count_open()
    with ExitStack() as stack:
        idle = [stack.enter_context(raw(address)) for _ in range(MOST + 50)]
        with enter(address, token).connection:
            served(request, 1)
        # The oldest were dropped, and what is open at the door is no more than it allows.
        idle[0].settimeout(60.0)
        with suppress(ConnectionResetError):
            assert len(idle[0].recv(1000)) == 16
            assert idle[0].recv(1) == b""
        assert count_open() - before <= len(idle) + MOST + 2
        assert threading.active_count() < 10


@pytest.mark.parametrize(
    "said", [b"\xff" * 48, b"\xff" * 100_000, b"GET / HTTP/1.1\r\n\r\n" * 3], ids=["length", "much", "http"]
)
def test_garbage_is_turned_away(address: Address, token: str, said: bytes, request) -> None:
    with raw(address) as stranger:
        stranger.settimeout(60.0)
        with suppress(ConnectionError):
            stranger.sendall(said)
            while stranger.recv(1000):
                pass
    with enter(address, token).connection:
        served(request, 1)


def test_a_byte_now_and_then_wins_no_time(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "MOMENT", 0.3)
    began = time.monotonic()
    with raw(address) as stranger, suppress(ConnectionError):
        while time.monotonic() < began + 60.0:
            stranger.sendall(b"x")
            time.sleep(0.05)
        pytest.fail("it was never turned away")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED, errno.ENOBUFS])
def test_what_cannot_be_accepted_now_is_accepted_later(token: str, number: int) -> None:
    refusals = [OSError(number, os.strerror(number))] * 3
    listener = RefusingListener(listen_at("127.0.0.1", 0), refusals)
    with closing(Served(listener, token)), enter(listener.getsockname(), token).connection:
        assert not refusals


# The door of a host.


@pytest.mark.parametrize("kind", KINDS)
def test_one_process_listens_and_the_next_when_it_has_ended(token: str, kind: socket.SocketKind) -> None:
    door = HostDoor(token, "test", kind)
    first = door.claim()
    assert door.claim() is None
    first.close()
    with pytest.raises(ConnectionRefusedError):
        door.connect()
    second = door.claim()
    second.close()


@pytest.fixture
def many_files() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def fill(name: bytes, kind: socket.SocketKind, stack: ExitStack) -> None:
    """Connect to a door until its queue is full."""
    with suppress(BlockingIOError):
        while True:
            connection = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            connection.setblocking(False)
            connection.connect(name)


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("kind", KINDS)
def test_a_door_whose_queue_is_full_is_not_claimed_again(token: str, kind: socket.SocketKind) -> None:
    door = HostDoor(token, "test", kind)
    with ExitStack() as stack:
        first = stack.enter_context(door.claim())
        fill(first.getsockname(), kind, stack)
        with pytest.raises(ConnectionRefusedError):
            door.connect(0.1)
        assert door.claim() is None
        first.close()
        stack.enter_context(door.claim())


@needs_root
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize("listens", [True, False])
def test_a_name_that_a_stranger_has_taken_is_passed_over(
    token: str, kind: socket.SocketKind, listens: bool, is_full: bool
) -> None:
    door = HostDoor(token, "test", kind)
    names = door.names()
    taken = [next(names), next(names)]

    def squat() -> list[socket.socket]:
        held = [socket.socket(socket.AF_UNIX, kind) for _ in taken]
        for each, name in zip(held, taken, strict=True):
            each.bind(name)
            if listens:
                each.listen(0)
        return held

    with as_stranger(squat), ExitStack() as stack:
        for each in taken if listens and is_full else ():
            fill(each, kind, stack)
        with pytest.raises(ConnectionRefusedError):
            door.connect(0.1)
        listener = door.claim()
        assert listener.getsockname() == next(names)
        assert door.claim() is None
        with door.connect() as found:
            assert found.getpeername() == listener.getsockname()
        listener.close()


@needs_root
def test_another_user_is_turned_away_before_anything_is_said(token: str) -> None:
    door = HostDoor(token, "test")
    listener = door.claim()

    def enter_anyway() -> None:
        assert os.geteuid() == STRANGER
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(next(door.names()))
            connection.settimeout(60.0)
            assert connection.recv(100) == b""
        # Nor does it take another user for the run, though it had the token.
        try:
            door.connect()
        except ConnectionRefusedError:
            return
        raise AssertionError("it believes another user")

    with closing(Served(listener, token)) as served, as_stranger(enter_anyway):
        pass
    assert not served.guests


def test_names_are_told_by_the_token_alone(token: str) -> None:
    names = [*HostDoor(token, "test").names()]
    assert len({*names, *HostDoor(token, "other").names(), *HostDoor(token + "x", "test").names()}) == 3 * len(names)
    # None leads to the next.
    assert all(token.encode() not in each for each in names)
