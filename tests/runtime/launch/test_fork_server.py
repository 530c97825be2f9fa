"""The fork server: real processes, started, ended and killed."""

import errno
import os
import select
import signal
import socket
from contextlib import closing
from unittest.mock import MagicMock

import pytest

from harness.doors import names_of
from harness.processes import children, is_running, processes, send_signal, title
from harness.sockets import listening
from harness.started import wait_until
from recycle.control.board.joinfile import new_token
from recycle.errors import RunFailed
from recycle.runtime.launch.meet.keepers import is_kept
from recycle.runtime.launch.process.fork_server import ForkServer
from recycle.runtime.launch.supervise.host_keeper import HostKeeper
from recycle.state.channel import HERE
from recycle.state.client import KeeperClient
from recycle.state.errors import KeeperLost
from recycle.state.keeper import listen
from recycle.state.ladder import StatePart
from tests.state.test_keeper import put


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
    started, ended = fork_server.next_event(120), fork_server.next_event(120)
    assert (started.kind, started.name, started.port) == ("started", "ends", 5)
    assert (ended.kind, ended.name, ended.pid, ended.status) == ("ended", "ends", started.pid, 5)
    assert fork_server.next_event(0) is None


def test_a_killed_process_has_the_status_of_its_signal(fork_server):
    fork_server.start_server("stays", 0)
    started = fork_server.next_event(120)
    send_signal(started.pid, signal.SIGKILL)
    assert fork_server.next_event(120).status == -signal.SIGKILL


def test_a_process_that_cannot_be_watched_is_refused_and_does_not_run(tmp_path, monkeypatch):
    def start(name, _):
        (tmp_path / name).touch()
        signal.pause()
        return 1

    def open_none(_):
        wait_until((tmp_path / "stays").exists)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", open_none)
    fork_server = ForkServer("127.0.0.1", start)
    fork_server.start_server("stays", 0)
    event = fork_server.next_event(120)
    assert (event.kind, event.reason) == ("refused", "[Errno 24] Too many open files")
    assert not children(fork_server.pid)
    fork_server.end()


def test_a_store_can_come_back_to_its_port(fork_server):
    fork_server.serve_store()
    first = fork_server.next_event(120)
    send_signal(first.pid, signal.SIGKILL)
    assert fork_server.next_event(120).kind == "ended"
    fork_server.serve_store(first.port)
    second = fork_server.next_event(120)
    assert (second.kind, second.port) == ("started", first.port)
    socket.create_connection(("127.0.0.1", second.port)).close()


def test_a_keeper_can_be_reached_once_it_has_started_and_outlives_it(fork_server):
    token = new_token()
    fork_server.start_keeper(token, 1000, None)
    started = fork_server.next_event(120)
    assert (started.kind, started.name) == ("started", "keeper")
    client = KeeperClient(HERE, token, "here")
    put(client, StatePart(0, 0, 0, 0, 1), bytes(1000))
    fork_server.end()
    fork_server.pid = 0
    # It is there for the next start of the run, until somebody says that there is none.
    assert len(client.copies()) == 1
    client.dismiss()
    wait_until(lambda: not is_kept(token))
    with pytest.raises(KeeperLost):
        client.copies()


def test_the_launcher_says_that_its_keeper_was_killed_and_has_the_next_one_stay(fork_server):
    token = new_token()
    keeper, setting = HostKeeper(token, fork_server), MagicMock()
    setting.keeping.limit.return_value, setting.keeping.within = 1000, None
    assert list(keeper.open(setting)) == [setting.keeping.describe.return_value]
    started = fork_server.next_event(120)
    assert started is not None
    assert list(keeper.learn(started)) == []
    assert list(keeper.look()) == []
    (first,) = keepers_of(token)
    send_signal(first, signal.SIGKILL)
    texts = []
    wait_until(lambda: texts.extend(keeper.look()) or texts)
    assert texts == ["the keeper's process is gone, and with it the copies in memory: another one is started"]
    assert list(keeper.look()) == []
    assert first not in keepers_of(token)
    keeper.end(over=True, trained=False)
    wait_until(lambda: not is_kept(token))
    assert fork_server.next_event(0) is None


def keepers_of(token):
    """The processes that serve as the keeper of a run."""
    (door,) = [name for name, kind in names_of(token).items() if kind == "keeper"]
    serving = [each for each in processes() if title(each) == "recycle: keeper"]
    return [each for each in serving if door in {socket.address for socket in listening([each])}]


def test_what_the_system_refuses_is_told_and_all_that_runs_goes_on(fork_server):
    fork_server.start_server("stays", 0)
    started = fork_server.next_event(120)
    token = new_token()
    # Another start of the run has a keeper here.
    with closing(listen(token)):
        fork_server.start_keeper(token, 1000, None)
        refused = fork_server.next_event(120)
    assert (refused.kind, refused.name) == ("refused", "keeper")
    assert "has a keeper on this host" in refused.reason
    with socket.create_server(("127.0.0.1", 0)) as taken:
        fork_server.serve_store(taken.getsockname()[1])
        refused = fork_server.next_event(120)
    assert (refused.kind, refused.name) == ("refused", "store")
    assert is_running(started.pid)
    fork_server.start_server("ends", 5)
    assert fork_server.next_event(120).kind == "started"


@pytest.mark.parametrize(
    "ask", [lambda it: it.next_event(120), lambda it: it.start_server("ends", 5)], ids=["look", "ask"]
)
def test_its_own_end_is_the_end_of_the_run_in_one_line(fork_server, ask):
    pid = os.pidfd_open(fork_server.pid)
    send_signal(fork_server.pid, signal.SIGKILL)
    assert select.select([pid], [], [], 120)[0]
    os.close(pid)
    with pytest.raises(RunFailed, match=r"^the fork server has ended, .*; go on with --resume"):
        ask(fork_server)


def test_all_end_with_it(fork_server, tmp_path):
    fork_server.start_server("stays", 0)
    started = fork_server.next_event(120)
    pid = os.pidfd_open(started.pid)
    fork_server.end()
    fork_server.pid = 0
    wait_until(lambda: not is_running(started.pid))
    os.close(pid)
