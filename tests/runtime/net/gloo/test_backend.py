"""The end of a group."""

import threading
from datetime import timedelta

import torch
from torch.distributed import HashStore

from harness.started import wait_until
from recycle.runtime.net.gloo.connecting import LazyGroup, connect_groups
from recycle.runtime.net.gloo.groups import make_backend
from recycle.runtime.net.network import NetworkOptions

SECONDS = timedelta(seconds=120)


def test_who_lets_go_of_a_group_does_not_wait_for_what_is_under_way_in_it():
    store, threads = HashStore(), set(threading.enumerate())
    backends = [make_backend(store, rank, ["W0_0", "W0_1"], NetworkOptions(SECONDS, SECONDS)) for rank in range(2)]
    groups = [LazyGroup(store, backends[rank], rank, [1 - rank]) for rank in range(2)]
    connecting = [threading.Thread(target=connect_groups, args=[[each], SECONDS, lambda: None]) for each in groups]
    for each in connecting:
        each.start()
    for each in connecting:
        each.join()
    total = torch.ones(1)
    under_way = backends[0].allreduce([total])
    del groups, connecting, each, backends[0]
    assert not under_way.is_completed()
    # What holds it up now is only the other rank, which comes.
    (second,) = backends
    second.allreduce([torch.ones(1)]).wait()
    under_way.wait()
    assert total.item() == 2
    wait_until(lambda: set(threading.enumerate()) == threads)
