"""What copies in memory take is asked of hosts before a run begins."""

import threading
from types import SimpleNamespace

import pytest

from harness.ports import free_port
from recycle.control.board.joinfile import new_token
from recycle.control.membership.view import ServerRank
from recycle.job import Server
from recycle.megatron.flag.state import memory_copies
from recycle.megatron.flag.state.memory_copies import announce
from recycle.runtime.errors import RunError
from recycle.state import channel, keeper
from recycle.state.client import KeeperClient
from recycle.state.directory import KeeperDirectory, KeeperHome
from recycle.state.ladder import MOST, StatePart
from recycle.state.redundancy import Redundancy
from tests.state.test_keeper import put

HERE, SIZE, LEFT = "127.0.0.1", 1000, 100
TOKEN = new_token()


def ask_for_room(monkeypatch):
    """A run of one server on one host asks for what its copies take."""
    directory = KeeperDirectory((KeeperHome("this", HERE, free_port()),), Redundancy(1, 1), {"W0_0": 0})
    for name, answer in (
        ("read_directory", lambda _: directory),
        ("available_memory", lambda: LEFT),
        ("_version_bytes", lambda *_: SIZE),
        ("_sizes", lambda *_: {0: SIZE}),
    ):
        monkeypatch.setattr(memory_copies, name, answer)
    return announce(None, 2, Server(0, 0), ServerRank(), 1, SimpleNamespace(token=TOKEN, address=HERE))


def test_what_an_earlier_start_has_left_on_a_host_is_room_for_what_this_one_keeps(monkeypatch):
    with keeper.listen(TOKEN) as listener:
        threading.Thread(target=keeper.serve, args=([listener], TOKEN, MOST * SIZE), daemon=True).start()
        client = KeeperClient(channel.HERE, TOKEN, "this host's keeper")
        with pytest.raises(RunError, match="it has 100 bytes left; take hosts with more memory"):
            ask_for_room(monkeypatch)
        put(client, StatePart(0, 0, 0, 0, 1), bytes(MOST * SIZE - LEFT))
        assert ask_for_room(monkeypatch)
        client.dismiss()
    with pytest.raises(RunError, match="left; take hosts with more memory"):
        ask_for_room(monkeypatch)
