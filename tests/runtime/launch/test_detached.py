import os
import signal
from contextlib import closing

from harness.processes import open_files, processes, send_signal, title
from harness.started import wait_until
from recycle.control.board.joinfile import new_token
from recycle.runtime.launch.meet.keepers import is_kept
from recycle.runtime.launch.process.detached import fork_keeper
from recycle.state import keeper
from recycle.state.channel import HERE
from recycle.state.client import KeeperClient
from recycle.state.errors import KeeperLost
from recycle.state.keeper import listen
from recycle.state.ladder import StatePart
from tests.state.test_keeper import put

PART = StatePart(0, 0, 0, 0, 1)


def holders(inode):
    """The processes that have a socket, by their titles."""
    return {title(each): each for each in processes() if f"socket:[{inode}]" in open_files(each).values()}


def test_a_keeper_that_is_killed_alone_is_started_again_at_the_same_address():
    token = new_token()
    listener = listen(token)
    inode = os.fstat(listener.fileno()).st_ino
    fork_keeper([listener], token, 10, None)
    client = KeeperClient(HERE, token, "here")

    # Another start of the run keeps more.
    client.hold(1000).close()
    client.hold(10).close()
    put(client, PART, bytes(1000))
    assert len(client.copies()) == 1
    first = wait_until(lambda: holders(inode).get("recycle: keeper"))
    send_signal(first, signal.SIGKILL)

    def found():
        try:
            return client.copies()
        except KeeperLost:
            return None

    wait_until(lambda: found() == ())
    assert holders(inode)["recycle: keeper"] != first
    put(client, PART, bytes(1000))
    assert len(client.copies()) == 1
    client.dismiss()
    wait_until(lambda: found() is None)


def test_a_keeper_that_has_failed_is_started_again_too(tmp_path, monkeypatch):
    token, serve = new_token(), keeper.serve

    def fail_once(*given, **named):
        if not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise MemoryError
        serve(*given, **named)

    monkeypatch.setattr(keeper, "serve", fail_once)
    fork_keeper([listen(token)], token, 10, None)
    wait_until(lambda: is_kept(token))
    client = KeeperClient(HERE, token, "here")
    assert client.copies() == ()
    assert (tmp_path / "failed").exists()
    client.dismiss()


def test_what_a_keeper_inherits_leads_nowhere_and_its_numbers_are_no_connections():
    """Whoever has such a number in the keeper's process may say something there, as log handlers do."""
    token = new_token()
    listener, (reader, writer) = listen(token), os.pipe()
    inode = os.fstat(listener.fileno()).st_ino
    fork_keeper([listener], token, 1000, None)
    os.close(writer)
    assert os.read(reader, 1) == b""
    client = KeeperClient(HERE, token, "here")
    with closing(client.hold(0)):
        process = wait_until(lambda: holders(inode).get("recycle: keeper"))
        for number in (0, 1, 2, reader, writer):
            assert open_files(process)[number] == os.devnull
    os.close(reader)
    client.dismiss()
