"""What the launcher is told, by whom it is told, and who is not let in."""

import multiprocessing
import os
import pickle
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from harness.started import wait_until
from recycle.control.host.channel import SealedChannel
from recycle.control.membership.addresses import listen_at
from recycle.control.membership.doors import Door, knock
from recycle.control.membership.errors import ChannelLost, ControlError
from recycle.runtime.launch.process import report_channel
from recycle.runtime.launch.process.messages import FailureMessage, HelloMessage, ReportMessage, WelcomeMessage
from recycle.runtime.launch.process.report_channel import PURPOSE, LauncherConnection, ReportInbox, launcher_at


@pytest.fixture
def inbox():
    inbox = ReportInbox("127.0.0.1", "token")
    inbox.open()
    yield inbox
    inbox.close()


def next_report(inbox):
    """The next message that is not the first of its sender."""
    while (received := inbox.take(120)) is not None and received.message == received.sender:
        pass
    assert received is not None
    return received


FORK = multiprocessing.get_context("fork")
STILL_THERE = ReportMessage(b"still there")


def test_what_is_told_arrives_in_order_with_who_told_it(inbox):
    send = LauncherConnection(inbox.address, "token", "W0_1#2", 77)
    messages = [ReportMessage(b"first"), ReportMessage(b"\xff second"), FailureMessage("third")]
    for each in messages:
        send(each)
    sender = HelloMessage("W0_1#2", 77)
    assert [inbox.take(120) for _ in range(4)] == [(sender, each) for each in (sender, *messages)]


def test_all_that_was_said_is_heard_though_who_said_it_has_ended(inbox):
    messages = [ReportMessage(str(number).encode()) for number in range(2000)]

    def say() -> None:
        send = LauncherConnection(inbox.address, "token", "W0_0#0", 1)
        for each in messages:
            send(each)

    speaker = FORK.Process(target=say)
    speaker.start()
    assert inbox.take(120).message == HelloMessage("W0_0#0", 1)
    speaker.join()
    assert [each.message for each in inbox.take_rest(120)] == messages


def test_who_goes_on_is_not_waited_for_at_the_end(inbox):
    send = LauncherConnection(inbox.address, "token", "W0_0#0", 1)
    send(STILL_THERE)
    assert next_report(inbox).message == STILL_THERE
    assert list(inbox.take_rest(0.1)) == []


@pytest.fixture
def here():
    """Where all processes are on this machine."""
    inbox = ReportInbox(None, secrets.token_hex(8))
    yield inbox
    inbox.close()


def test_on_one_machine_it_is_told_the_same_without_a_port(here):
    here.open()
    assert here.port == 0
    send = LauncherConnection(launcher_at("127.0.0.1", 0, here.address.token), here.address.token, "W0_0#0", 1)
    send(STILL_THERE)
    assert next_report(here).message == STILL_THERE
    with pytest.raises(ControlError, match="the launcher cannot listen on this machine: another process of this run"):
        ReportInbox(None, here.address.token)


def test_nobody_waits_for_a_launcher_that_is_stopped(here, monkeypatch):
    monkeypatch.setattr(report_channel, "VANISHED", 0.2)
    lost = threading.Event()

    def let_one_in_and_stop():
        with closing(Door([here._socket], here.address.token, PURPOSE)) as door:
            while not (guests := [*door.admit(1.0)]):
                pass
        with closing(SealedChannel(guests[0], here.address.token, "launcher", "member")) as channel:
            channel.receive(HelloMessage)
            channel.send(WelcomeMessage("", 0.0))
            assert lost.wait(120)

    with ThreadPoolExecutor(1) as pool:
        launcher = pool.submit(let_one_in_and_stop)
        send = LauncherConnection(here.address, here.address.token, "W0_0#0", 1, lost.set)
        while not lost.is_set():
            send(ReportMessage(bytes(10_000)))
        launcher.result()
    send(STILL_THERE)


def test_without_the_token_nobody_is_let_in(inbox):
    with pytest.raises(ControlError, match=r"does not let this process in .*; take the address and the token from"):
        LauncherConnection(inbox.address, "another", "W0_1#0", 1)
    LauncherConnection(inbox.address, "token", "W0_0#0", 1)(STILL_THERE)
    assert next_report(inbox).sender.name == "W0_0#0"
    assert inbox.take(0) is None


def enter(inbox):
    """A connection of a process that has the token, and may say anything."""
    guest = knock(inbox.address, "token", PURPOSE, 10.0, 120.0)
    return closing(SealedChannel(guest, "token", "member", "launcher"))


def test_messages_that_always_come_have_an_end(inbox):
    """The launcher has more to do than to hear, and what it does with a message may take longer than the next one."""
    send = LauncherConnection(inbox.address, "token", "W0_0#0", 1)
    send(STILL_THERE)
    for dealt_with, _ in enumerate(inbox.take_all(120)):
        assert dealt_with < 10
        send(STILL_THERE)
        wait_until(lambda: inbox._received.qsize())
    assert next_report(inbox).message == STILL_THERE


def test_noise_and_whoever_hangs_up_at_once_do_no_harm(inbox):
    with socket.create_connection(inbox.address) as stranger:
        stranger.sendall(b"\xff" * 100)
    socket.create_connection(inbox.address).close()
    with enter(inbox) as member:
        member.send_bytes([memoryview(b"no message" * 100)])
    with enter(inbox) as member:
        member.send_bytes([memoryview(b"\xff\xff\xff\xff")])
    with enter(inbox) as member:
        member.send(STILL_THERE)  # without having said who it is
        member.send(STILL_THERE)
    LauncherConnection(inbox.address, "token", "W0_0#0", 1)(STILL_THERE)
    assert next_report(inbox).message == STILL_THERE
    assert inbox.take(0) is None


class Harm:
    """What a pickle of this does when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_what_is_told_is_never_unpickled(inbox, tmp_path):
    harm = Harm(tmp_path / "harm")
    with enter(inbox) as member:
        member.send(HelloMessage("W0_0#0", 1))
        member.receive(WelcomeMessage)
        member.send_bytes([memoryview(pickle.dumps(harm))])
        # The inbox hangs up when it has read that.
        with pytest.raises(ChannelLost):
            member.receive(WelcomeMessage)
    assert not harm.path.exists()


def test_how_far_a_clock_is_ahead_of_another_machines_is_known(inbox):
    assert LauncherConnection(inbox.address, "token", "W0_0#0", 1).ahead == 0.0
    begin = time.monotonic()

    def be_elsewhere():
        guests = ()
        while not guests:
            guests = [*door.admit(1.0)]
        member = SealedChannel(guests[0], "token", "launcher", "member")
        member.receive(HelloMessage)
        # Its machine was started an hour later.
        member.send(WelcomeMessage("another clock", time.monotonic() - 3600))

    with (
        listen_at("127.0.0.1", 0) as another,
        closing(Door([another], "token", PURPOSE)) as door,
        ThreadPoolExecutor(1) as pool,
    ):
        pool.submit(be_elsewhere)
        ahead = LauncherConnection(another.getsockname(), "token", "W0_0#0", 1).ahead / 1e6
    assert abs(ahead - 3600) <= time.monotonic() - begin


def test_who_comes_later_goes_on_without_a_launcher_that_is_gone(inbox):
    inbox.close()
    lost = []
    send = LauncherConnection(inbox.address, "token", "W0_0#1", 1, lambda: lost.append(1), required=False)
    send(STILL_THERE)
    assert lost == [1]
    with pytest.raises(ControlError, match="does not let this process in"):
        LauncherConnection(inbox.address, "token", "W0_0#0", 1)


def test_training_does_not_depend_on_who_watches(inbox):
    send = LauncherConnection(inbox.address, "token", "W0_0#0", 1)
    inbox.close()
    for _ in range(3):
        send(ReportMessage(b"x" * 1_000_000))
