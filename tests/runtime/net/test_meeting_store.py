import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch.distributed import DistStoreError, PrefixStore, ProcessGroupGloo

from harness.memory_store import MemoryStore
from recycle.control.store.tcp_store import TorchStore, listen, serve
from recycle.runtime.net.meeting_store import MeetingStore


@pytest.fixture
def meetings():
    """Torch's views of two connections; groups see them through a prefix."""
    ours = MemoryStore()
    views = [MeetingStore(ours, "token"), MeetingStore(ours.clone(), "token")]
    # Groups do not keep the view that they see.
    yield [PrefixStore("epoch/0", view) for view in views]
    del views


def test_what_one_sets_the_other_gets(meetings):
    one, other = meetings
    one.set("a", "1")
    one.multi_set(["b"], [b"\0\xff"])
    assert other.get("a") == b"1"
    assert other.multi_get(["b", "a"]) == [b"\0\xff", b"1"]
    assert other.check(["a", "b"])
    assert not other.check(["a", "c"])
    assert other.compare_set("c", "", "2") == b"2"
    assert one.compare_set("c", "3", "4") == b"2"


def test_a_get_waits_and_so_does_a_wait(meetings):
    one, other = meetings
    timer = threading.Timer(0.05, lambda: (one.set("a", "1"), one.set("b", "2")))
    timer.start()
    other.wait(["b", "a"], timedelta(seconds=120))
    assert other.multi_get(["a", "b"]) == [b"1", b"2"]
    timer.join()
    later = threading.Timer(0.05, one.set, ("c", "3"))
    later.start()
    assert other.get("c") == b"3"
    later.join()


def test_nobody_waits_for_longer_than_was_said(meetings):
    with pytest.raises(DistStoreError, match="nobody has set epoch/0/a within"):
        meetings[0].wait(["a"], timedelta(seconds=0.05))
    view = MeetingStore(MemoryStore(), "token")
    view.set_timeout(timedelta(seconds=0.05))
    with pytest.raises(DistStoreError, match="nobody has set a within"):
        view.get("a")


def test_what_a_stranger_stores_is_not_there():
    ours = MemoryStore()
    one, other = MeetingStore(ours, "token"), MeetingStore(ours.clone(), "token")
    one.set("a", "1")
    ours.set("b", ours.get("a"))  # sealed, for another key
    ours.set("c", b"garbage")
    MeetingStore(ours, "another token").set("d", "2")
    for key in "bcd":
        assert not other.check([key])
        with pytest.raises(DistStoreError, match=f"nobody has set {key} within"):
            other.wait([key], timedelta(seconds=0.05))
        assert other.compare_set(key, "", "3") == b"3"
    later = threading.Timer(0.05, one.set, ("a", "4"))
    ours.set("a", b"garbage")
    later.start()
    assert other.get("a") == b"4"
    later.join()


def test_groups_meet_over_a_store_of_torchs():
    server = serve(listen())
    ours = [TorchStore("127.0.0.1", server.port) for _ in range(2)]
    views = [MeetingStore(each, "token") for each in ours]
    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(lambda rank: ProcessGroupGloo(views[rank], rank, 2, timedelta(seconds=60)), range(2)))
        sums = [torch.ones(1) for _ in groups]
        list(pool.map(lambda pair: pair[0].allreduce(pair[1]).wait(), zip(groups, sums, strict=True)))
    assert [float(each) for each in sums] == [2.0, 2.0]
