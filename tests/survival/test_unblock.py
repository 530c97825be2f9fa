"""What this release of gloo does when its connections are cut: every thread that waits in the group is freed."""

import threading
from datetime import timedelta
from typing import NamedTuple

import pytest
import torch
from torch.distributed import HashStore, PrefixStore, ProcessGroupGloo

from recycle.runtime.injection import _cut_connections
from recycle.runtime.launcher import launch
from recycle.runtime.unblock import Connections, open_sockets, unblock

pytestmark = pytest.mark.timeout(60)
FOR_EVER = timedelta(seconds=50)

WAITS = {
    "receive": lambda group, partner: group.recv([torch.zeros(4)], partner, 5).wait(FOR_EVER),
    "send": lambda group, partner: group.send([torch.zeros(1 << 20)], partner, 5).wait(FOR_EVER),
    "sum": lambda group, _: group.allreduce([torch.zeros(4)]).wait(),
    "barrier": lambda group, _: group.barrier().wait(),
}


class Group(NamedTuple):
    backend: ProcessGroupGloo
    connections: Connections

    @classmethod
    def of(cls, store, rank, size, keep=()):
        before = open_sockets()
        backend = ProcessGroupGloo(store, rank, size, FOR_EVER)
        return cls(backend, Connections(before, frozenset(keep)))

    def free(self):
        unblock(self.backend, self.connections)


def wait_and_be_freed(group, wait, partner):
    """Wait in the main thread, while another one frees it until that worked."""
    freed = threading.Event()

    def free():
        while not freed.wait(0.1):
            group.free()

    thread = threading.Thread(target=free)
    thread.start()
    with pytest.raises(RuntimeError):
        wait(group.backend, partner)
    freed.set()
    thread.join()


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
@pytest.mark.parametrize("first_partner_is_gone", [False, True], ids=["stuck", "gone"])
def test_a_thread_that_waits_is_freed(wait, first_partner_is_gone):
    heard = {}

    def body(member):
        store = member.store()
        group = Group.of(store, member.rank, 3, [store.port])
        group.backend.allreduce([torch.zeros(1)]).wait()
        if member.rank == 0:
            if first_partner_is_gone:
                store.wait(["gone"], FOR_EVER)
            wait_and_be_freed(group, wait, partner=2 if first_partner_is_gone else 1)
            member.report(b"freed")
            store.set("over", "")
            return
        if member.rank == 1 and first_partner_is_gone:
            # The launcher would end all if the process itself died.
            _cut_connections({store.port})
            store.set("gone", "")
        store.wait(["over"], FOR_EVER)

    launch(3, body, lambda rank, content: heard.update({rank: content}))
    assert heard == {0: b"freed"}


def test_nobody_waits_in_a_group_of_one():
    group = Group.of(HashStore(), 0, 1)
    group.free()
    total = torch.ones(1)
    group.backend.allreduce([total]).wait()
    assert total.item() == 1


def test_other_groups_of_the_process_go_on():
    heard = {}

    def body(member):
        store = member.store()
        spoiled, other = (Group.of(PrefixStore(name, store), member.rank, 2, [store.port]) for name in ("a", "b"))
        if member.rank == 0:
            wait_and_be_freed(spoiled, WAITS["receive"], partner=1)
        total = torch.ones(1)
        other.backend.allreduce([total]).wait()
        member.report(str(total.item()).encode())

    launch(2, body, lambda rank, content: heard.update({rank: content}))
    assert heard == {0: b"2.0", 1: b"2.0"}


class Abortable:
    """Stands in for a backend of NCCL, which needs a GPU."""

    def __init__(self):
        self.aborted = False

    def abort(self):
        self.aborted = True


def test_a_backend_that_can_be_aborted_is():
    group = Abortable()
    unblock(group, None)
    assert group.aborted
