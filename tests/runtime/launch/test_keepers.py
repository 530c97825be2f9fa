"""A host that joins has a keeper in the place of one that is gone, for what it has offered."""

from itertools import count
from types import SimpleNamespace

from harness.memory_store import MemoryStore
from harness.ports import free_port
from recycle.job import Server
from recycle.runtime.launch.meet import keepers
from recycle.runtime.launch.meet.keepers import KeeperSetting, KeeperSlot, settle
from recycle.state.directory import KeeperDirectory, KeeperHome
from recycle.state.redundancy import Redundancy

HERE, LOST = "127.0.0.1", "127.0.0.2"
SERVER = Server(1, 0)


def test_a_host_that_keeps_all_that_it_has_left_is_not_refused_because_that_changes(monkeypatch):
    """As it does all the time on a host where somebody else is at work."""
    left, forked, store = count(1 << 30, -1), [], MemoryStore()
    monkeypatch.setattr(keepers, "available_memory", lambda: next(left))
    monkeypatch.setattr(keepers, "hold", lambda *_: None)
    monkeypatch.setattr(keepers, "fork_keeper", lambda doors, token, limit, within: forked.append((doors, limit)))
    homes = KeeperHome("alive", "127.0.0.3", free_port()), KeeperHome("lost", LOST, free_port())
    KeeperDirectory(homes, Redundancy(1, 1), {"W0_0": 0, "W1_0": 1}).tell(store, "token")
    endpoint = SimpleNamespace(token="token", address=HERE, connect=store.clone)

    slot = KeeperSlot("", HERE, resumes=False)
    offered = slot.offer.memory
    settle(KeeperSetting(Redundancy(1, 1), lambda _: offered, slot, lambda _: ""), endpoint, SERVER, {Server(0, 0)})
    ((doors, limit),) = forked
    assert limit == offered
    assert KeeperDirectory.read(store, "token").homes[1].address == HERE
    for each in doors:
        each.close()
