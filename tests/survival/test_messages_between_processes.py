"""What servers send each other and the launcher, apart from gradients."""

import os
import queue
import signal
import socket
import time
from multiprocessing.connection import Client

import msgspec
import pytest
import torch
from torch.distributed import HashStore

from recycle.control.errors import ControlError
from recycle.control.view import View
from recycle.job import Server
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.execute.notices import EVERY, NoticeExchange, Notices
from recycle.runtime.join.handover import LARGEST_HEAD, StateHead, TensorHead, receive_state, send_state
from recycle.runtime.launch.fork_server import ForkServer
from recycle.runtime.launch.local import launch
from recycle.runtime.launch.messages import FailureMessage, HelloMessage, ReportMessage, encode
from recycle.runtime.launch.report_channel import ReportInbox, connect_to_launcher
from recycle.runtime.net.connect import connect
from recycle.runtime.net.transfer_key import STATE

pytestmark = pytest.mark.timeout(60)


# A state that is handed over.


class Done:
    def wait(self):
        pass


class Line:
    """Both ends of a link within one process: what is sent is there to be received."""

    def __init__(self):
        self.sent = queue.SimpleQueue()

    def send(self, tensor, _):
        self.sent.put(tensor.clone())
        return Done()

    def receive(self, tensor, _):
        tensor.copy_(self.sent.get(timeout=5))
        return Done()


def test_a_state_arrives_as_it_was_sent():
    state = {
        "matrix": torch.randn(3, 4).t(),
        "step": torch.tensor(7.0),
        "half": torch.randn(5).bfloat16(),
        "count": torch.tensor([2**40]),
        "nothing": torch.empty(0, 3),
    }
    line = Line()
    send_state(line, 12, state)
    step, received = receive_state(line)
    assert step == 12
    torch.testing.assert_close(received, {name: each.contiguous() for name, each in state.items()}, rtol=0, atol=0)


def bytes_of(content):
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


@pytest.mark.parametrize("length", [0, -1, LARGEST_HEAD + 1])
def test_a_head_of_an_impossible_length_is_refused(length):
    line = Line()
    line.send(torch.tensor([length]), STATE)
    with pytest.raises(ConnectionLost, match=f"a head of {length} bytes"):
        receive_state(line)


@pytest.mark.parametrize(
    "content",
    [
        b"no message",
        msgspec.msgpack.encode({"step": 1}),
        msgspec.msgpack.encode(StateHead(1, [TensorHead("a", (2,), "object")])),
        msgspec.msgpack.encode(StateHead(1, [TensorHead("a", (-2,), "float32")])),
    ],
    ids=["noise", "another", "type", "shape"],
)
def test_a_head_that_is_none_is_refused(content):
    line = Line()
    line.send(torch.tensor([len(content)]), STATE)
    line.send(bytes_of(content), STATE)
    with pytest.raises(ConnectionLost, match="a state that cannot be read"):
        receive_state(line)


# Notices.


def test_a_notice_is_read_by_all_one_iteration_after_it_was_posted():
    view = View.among([Server(0, 0), Server(1, 0)])
    heard = {}

    def body(member):
        notices = NoticeExchange(connect(member.store(), view, view.servers[member.rank]))
        found = []
        for iteration in range(2 * EVERY + 1):
            notices.say = Notices(admit=int(iteration == EVERY), unprotected=int(member.rank == 1))
            notices.exchange()
            found.append(notices.heard)
        notices.collect()
        member.report(msgspec.json.encode([*found, notices.heard]))

    launch(2, body, lambda rank, content: heard.update({rank: msgspec.json.decode(content, type=list[Notices])}))
    expected = [Notices(), *[Notices(0, 1)] * EVERY, *[Notices(2, 1)] * EVERY, Notices(0, 1)]
    assert heard == {0: expected, 1: expected}


def test_nothing_is_under_way_before_the_first_notice():
    notices = NoticeExchange(connect(HashStore(), View.among([Server(0, 0)]), Server(0, 0)))
    notices.collect()
    assert notices.heard == Notices()


# What the launcher is told.


@pytest.fixture
def inbox():
    inbox = ReportInbox("127.0.0.1", "token")
    inbox.open()
    yield inbox
    inbox.close()


def next_report(inbox):
    """The next message that is not the first of its sender."""
    while (received := inbox.take(10)) is not None and received.message == received.sender:
        pass
    assert received is not None
    return received


STILL_THERE = ReportMessage(b"still there")


def test_what_is_told_arrives_in_order_with_who_told_it(inbox):
    send = connect_to_launcher(inbox.address, "token", "W0_1#2", 77)
    messages = [ReportMessage(b"first"), ReportMessage(b"\xff second"), FailureMessage("third")]
    for each in messages:
        send(each)
    sender = HelloMessage("W0_1#2", 77)
    assert [inbox.take(10) for _ in range(4)] == [(sender, each) for each in (sender, *messages)]


def test_without_the_token_nobody_is_let_in(inbox):
    with pytest.raises(ControlError, match=r"does not let this process in .*; take the address and the token from"):
        connect_to_launcher(inbox.address, "another", "W0_1#0", 1)
    connect_to_launcher(inbox.address, "token", "W0_0#0", 1)(STILL_THERE)
    assert next_report(inbox).sender.name == "W0_0#0"
    assert inbox.take(0) is None


def test_noise_and_whoever_hangs_up_at_once_do_no_harm(inbox):
    with socket.create_connection(inbox.address) as stranger:
        stranger.sendall(b"\xff" * 100)
    socket.create_connection(inbox.address).close()
    with Client(inbox.address, authkey=b"token") as member:
        member.send_bytes(encode(HelloMessage("x" * 1000, 1)))  # no name is that long
    with Client(inbox.address, authkey=b"token") as member:
        member.send_bytes(b"no message")
        member.send_bytes(encode(STILL_THERE))
    with Client(inbox.address, authkey=b"token") as member:
        member.send_bytes(encode(STILL_THERE))  # without having said who it is
        member.send_bytes(encode(STILL_THERE))
    connect_to_launcher(inbox.address, "token", "W0_0#0", 1)(STILL_THERE)
    assert next_report(inbox).message == STILL_THERE
    assert inbox.take(0) is None


def test_who_connects_and_says_nothing_keeps_nobody_out(inbox):
    with socket.create_connection(inbox.address):
        connect_to_launcher(inbox.address, "token", "W0_0#0", 1)(STILL_THERE)
        assert next_report(inbox).message == STILL_THERE


class Harm:
    """What a pickle of this does when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_what_is_told_is_never_unpickled(inbox, tmp_path):
    harm = Harm(tmp_path / "harm")
    with Client(inbox.address, authkey=b"token") as member:
        member.send_bytes(encode(HelloMessage("W0_0#0", 1)))
        member.send(harm)
        # The inbox hangs up when it has read that.
        with pytest.raises((EOFError, ConnectionError)):
            member.recv_bytes()
    assert not harm.path.exists()


def test_training_does_not_depend_on_who_watches(inbox):
    send = connect_to_launcher(inbox.address, "token", "W0_0#0", 1)
    inbox.close()
    for _ in range(3):
        send(ReportMessage(b"x" * 1_000_000))


# The fork server.


@pytest.fixture
def fork_server(tmp_path):
    def start(name, port):
        if name == "ends":
            return port
        (tmp_path / name).write_text(str(os.getpid()))
        signal.pause()
        return 1

    fork_server = ForkServer("127.0.0.1", start)
    yield fork_server
    if fork_server.pid:
        fork_server.end()


def test_it_tells_of_each_process_that_it_starts_and_that_ends(fork_server):
    fork_server.start_server("ends", 5)
    started, ended = fork_server.next_event(30), fork_server.next_event(30)
    assert (started.kind, started.name, started.port) == ("started", "ends", 5)
    assert (ended.kind, ended.name, ended.pid, ended.status) == ("ended", "ends", started.pid, 5)
    assert fork_server.next_event(0) is None


def test_a_killed_process_has_the_status_of_its_signal(fork_server):
    fork_server.start_server("stays", 0)
    started = fork_server.next_event(30)
    os.kill(started.pid, signal.SIGKILL)
    assert fork_server.next_event(30).status == -signal.SIGKILL


def test_a_store_can_come_back_to_its_port(fork_server):
    fork_server.serve_store()
    first = fork_server.next_event(30)
    os.kill(first.pid, signal.SIGKILL)
    assert fork_server.next_event(30).kind == "ended"
    fork_server.serve_store(first.port)
    second = fork_server.next_event(30)
    assert (second.kind, second.port) == ("started", first.port)
    socket.create_connection(("127.0.0.1", second.port)).close()


def test_all_end_with_it(fork_server, tmp_path):
    fork_server.start_server("stays", 0)
    started = fork_server.next_event(30)
    pid = os.pidfd_open(started.pid)
    fork_server.end()
    fork_server.pid = 0
    deadline = time.monotonic() + 30
    while is_running(started.pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.close(pid)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
