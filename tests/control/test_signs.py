import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from recycle.control.host.signs import HostSocket, Sign, host_name, sign_of_agent, sign_of_worker
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member

A = Member.parse("W0_0#0")


@pytest.fixture
def token() -> str:
    return secrets.token_hex(8)


@pytest.fixture
def other(token: str) -> Iterator[HostSocket]:
    with closing(HostSocket(token)) as other:
        yield other


@pytest.fixture
def host(token: str) -> Iterator[HostSocket]:
    with closing(HostSocket(token)) as host:
        assert host.listen()
        yield host


def test_one_process_takes_the_signs_of_all(host: HostSocket, other: HostSocket) -> None:
    assert not other.listen()
    other.give(sign_of_agent(Participant(A), 1))
    other.give(sign_of_worker(Participant(A), 7, over=True))
    first, second = host.take()
    assert (first.member, first.role, first.count, first.over) == ("W0_0#0", "agent", 1, False)
    assert (second.member, second.role, second.count, second.over) == ("W0_0#0", "worker", 7, True)
    assert list(host.take()) == []


def test_when_it_ends_another_one_takes_them(token: str, other: HostSocket) -> None:
    with closing(HostSocket(token)) as first:
        assert first.listen()
        other.give(sign_of_agent(Participant(A), 1))
        assert [each.count for each in first.take()] == [1]
    other.give(sign_of_agent(Participant(A), 2))
    with closing(HostSocket(token)) as second:
        assert second.listen()
        other.give(sign_of_agent(Participant(A), 3))
        assert [each.count for each in second.take()] == [3]


def test_each_run_has_its_own(host: HostSocket) -> None:
    with closing(HostSocket(secrets.token_hex(8))) as stranger:
        assert stranger.listen()
        stranger.give(sign_of_agent(Participant(A), 1))
        assert list(host.take()) == []
        assert len(list(stranger.take())) == 1


def test_what_was_not_made_with_the_token_is_ignored(host: HostSocket, other: HostSocket) -> None:
    assert host._listener is not None
    name = host._listener.getsockname()
    for content in (b"x", b"x" * 100, b"x" * 10_000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(name)
            stranger.send(content)
    other.give(Sign("W0_0#0", 1, "agent", 1))
    assert [each.agent for each in host.take()] == [1]


def test_signs_that_nobody_takes_hinder_nobody(host: HostSocket, other: HostSocket) -> None:
    for count in range(10_000):
        other.give(sign_of_agent(Participant(A), count))
    assert next(iter(host.take())).count == 0


def test_of_many_who_give_at_once_all_are_heard(token: str, host: HostSocket) -> None:
    with ExitStack() as stack:
        for number in range(100):
            giver = stack.enter_context(closing(HostSocket(token)))
            giver.give(Sign(f"W{number}_0#0", 1, "worker", 1))
        assert len({each.member for each in host.take()}) == 100


def test_a_host_has_one_name() -> None:
    assert host_name() == host_name()
