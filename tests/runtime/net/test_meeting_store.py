import threading
from datetime import timedelta

import pytest
from torch.distributed import DistStoreError, PrefixStore

from harness.memory_store import MemoryStore
from recycle.control.store.tcp_store import TorchStore, listen, serve
from recycle.runtime.net.meeting_store import meeting_over


@pytest.fixture
def meetings():
    """Torch's views of two connections; groups see them through a prefix."""
    ours = MemoryStore()
    views = [meeting_over(ours), meeting_over(ours.clone())]
    # Groups do not keep the view that they see.
    yield [PrefixStore("epoch/0", view) for view in views]
    del views


def test_what_one_sets_the_other_gets(meetings):
    one, other = meetings
    one.set("a", "1")
    one.set("b", b"\0\xff")
    assert other.get("a") == b"1"
    assert other.multi_get(["b", "a"]) == [b"\0\xff", b"1"]
    assert other.check(["a", "b"])
    assert not other.check(["a", "c"])
    assert one.add("n", 1) == 1
    assert other.add("n", 1) == 2
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
    view = meeting_over(MemoryStore())
    view.set_timeout(timedelta(seconds=0.05))
    with pytest.raises(DistStoreError, match="nobody has set a within"):
        view.get("a")


def test_a_store_of_torchs_is_its_own_view():
    listener = listen()
    host, port = listener.getsockname()
    server = serve(listener)
    store = TorchStore(host, port)
    assert meeting_over(store) is store.torch_store
    del server
