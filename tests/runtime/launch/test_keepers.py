"""A host that joins has a keeper in the place of one that is gone, for what it has offered."""

import threading
from itertools import count
from types import SimpleNamespace

import msgspec
import pytest

from harness.memory_store import MemoryStore
from harness.ports import free_port
from recycle.control.board.board import Board
from recycle.control.board.joinfile import new_token
from recycle.control.board.parts import Whereabouts
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member
from recycle.job import Server
from recycle.runtime.launch.meet import keepers
from recycle.runtime.launch.meet.keepers import KeeperSetting, KeeperSlot, settle
from recycle.state import channel, keeper
from recycle.state.client import KeeperClient
from recycle.state.directory import KeeperDirectory, KeeperHome
from recycle.state.ladder import StatePart
from recycle.state.redundancy import Redundancy
from tests.state.test_keeper import put

HERE, LOST, ALIVE = "127.0.0.1", "127.0.0.2", "127.0.0.3"
# The door of a host's keeper is one for all that run on it.
TOKEN = new_token()
SERVER = Server(1, 0)
OTHER = Member(Server(0, 0), 0)


@pytest.fixture
def forked(monkeypatch):
    """The doors and the limit of each keeper that was started."""
    started = []
    monkeypatch.setattr(keepers, "hold", lambda *_: None)
    monkeypatch.setattr(keepers, "fork_keeper", lambda doors, token, limit, within: started.append((doors, limit)))
    yield started
    for doors, _ in started:
        for each in doors:
            each.close()


def join(store, slot):
    """A server that joins on this host has its keeper settled; another one of its stage trains on another host."""
    endpoint = SimpleNamespace(token=TOKEN, address=HERE, connect=store.clone)
    offered = slot.offer.memory
    settle(KeeperSetting(Redundancy(1, 1), lambda _: offered, slot, lambda _: ""), endpoint, SERVER, [OTHER])


def run_of(address):
    """The store of a run, one host of which is gone, with its keeper."""
    store = MemoryStore()
    homes = KeeperHome("alive", ALIVE, free_port()), KeeperHome("lost", address, free_port())
    KeeperDirectory(homes, Redundancy(1, 1), {"W0_0": 0, "W1_0": 1}).tell(store, TOKEN)
    Board(store, TOKEN).links.settle(Participant(OTHER), Whereabouts("alive", "alive", ALIVE))
    return store


def test_a_host_that_has_booted_again_has_a_keeper_in_its_own_place(forked):
    store, slot = run_of(HERE), KeeperSlot("", HERE, resumes=False)
    join(store, slot)
    home = KeeperDirectory.read(store, TOKEN).homes[1]
    assert (home.address, home.port, len(forked)) == (HERE, slot.offer.port, 1)


def test_a_host_whose_keeper_is_there_gets_no_other(forked):
    store, slot = run_of(HERE), KeeperSlot("", HERE, resumes=False)
    with keeper.listen(TOKEN) as listener:
        threading.Thread(target=keeper.serve, args=([listener], TOKEN, 1), daemon=True).start()
        before = KeeperDirectory.read(store, TOKEN)
        join(store, slot)
        KeeperClient(channel.HERE, TOKEN, "this host's keeper").dismiss()
    assert KeeperDirectory.read(store, TOKEN) == before
    assert not forked


def test_a_host_offers_what_the_keeper_of_an_earlier_start_has_taken_there(monkeypatch):
    monkeypatch.setattr(keepers, "available_memory", lambda: 1000)
    with keeper.listen(TOKEN) as listener:
        threading.Thread(target=keeper.serve, args=([listener], TOKEN, 1 << 20), daemon=True).start()
        client = KeeperClient(channel.HERE, TOKEN, "this host's keeper")
        for stage in range(2):
            put(client, StatePart(stage, 0, 0, 0, 1), bytes(300))
        offer = KeeperSlot(TOKEN, None, resumes=True).offer
        client.dismiss()
    assert offer.memory == 1000 + 2 * 300


def test_a_host_that_keeps_all_that_it_has_left_is_not_refused_because_that_changes(monkeypatch, forked):
    """As it does all the time on a host where somebody else is at work."""
    left, store = count(1 << 30, -1), run_of(LOST)
    monkeypatch.setattr(keepers, "available_memory", lambda: next(left))
    slot = KeeperSlot("", HERE, resumes=False)
    join(store, slot)
    assert [limit for _, limit in forked] == [slot.offer.memory]
    assert KeeperDirectory.read(store, TOKEN).homes[1].address == HERE


def test_a_lost_host_is_replaced_though_one_of_its_servers_has_come_back_on_another_one(forked):
    store, slot = run_of(LOST), KeeperSlot("", HERE, resumes=False)
    directory = KeeperDirectory.read(store, TOKEN)
    # Of the lost host's servers, the other one lives on the host that is left.
    msgspec.structs.replace(directory, on={"W1_1": 0, "W1_0": 1, "W0_0": 1}).tell(store, TOKEN)
    join(store, slot)
    assert [home.address for home in KeeperDirectory.read(store, TOKEN).homes] == [ALIVE, HERE]
    assert len(forked) == 1


def test_in_a_store_that_does_not_know_where_servers_are_their_first_hosts_are_taken(forked):
    store, slot = run_of(LOST), KeeperSlot("", HERE, resumes=False)
    found = KeeperDirectory.read(store, TOKEN)
    mended = MemoryStore()
    found.tell(mended, TOKEN)
    # Neither keeper can be reached from here.
    join(mended, slot)
    assert [home.address for home in KeeperDirectory.read(mended, TOKEN).homes] == [ALIVE, HERE]
