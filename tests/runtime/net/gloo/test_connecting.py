"""Connecting: only those that send to each other, and never longer than the view lasts."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore

from harness.local import launch
from harness.memory_store import MemoryStore
from recycle.control.membership.addresses import LOOPBACK
from recycle.control.membership.view import View
from recycle.control.store.tcp_store import TorchStore, listen, serve
from recycle.job import Server
from recycle.runtime.errors import ConnectionLost, Interrupted
from recycle.runtime.net.connect import connect, connect_pair
from recycle.runtime.net.gloo import connecting
from recycle.runtime.net.gloo.backend import neighbours
from recycle.runtime.net.gloo.connecting import _await
from recycle.runtime.net.gloo.groups import make_backend
from recycle.runtime.net.gloo.sockets import Address
from recycle.runtime.net.meeting_store import MeetingStore
from recycle.runtime.net.network import DEFAULTS, NetworkOptions

FOR_EVER = timedelta(seconds=200)
PATIENT = NetworkOptions(FOR_EVER, FOR_EVER)


def line(depth):
    """A view of two pipelines, and whom each server sends to: its neighbours in its pipeline."""
    servers = [Server(pipeline, stage) for pipeline in range(2) for stage in range(depth)]
    near = {
        each: [Server(each.pipeline, stage) for stage in (each.stage - 1, each.stage + 1) if 0 <= stage < depth]
        for each in servers
    }
    return View.among(servers), near


def sockets():
    """How many this process has."""
    return sum(each.is_socket() for each in Path("/proc/self/fd").iterdir())


def sockets_of(depth):
    counts = []
    view, near = line(depth)

    def body(member):
        server = view.servers[member.rank]
        store = member.store()
        before = sockets()
        network = connect(store, view, server, partners=near[server])
        for each in near[server]:
            network.link(each)
        total, most = torch.ones(1), torch.tensor([float(member.rank)])
        network.all.sum(total)
        network.peers.maximum(most)
        assert total.item() == member.count
        assert most.item() == max(view.rank(each) for each in view.peers(server.stage))
        member.report(str(sockets() - before).encode())
        network.barrier()

    launch(2 * depth, body, lambda _, content: counts.append(int(content)))
    return max(counts)


def test_the_sockets_of_a_member_do_not_grow_with_the_view():
    # Two that listen, two of each ring, and two neighbours, who may be the ring's.
    assert sockets_of(3) <= 8
    assert sockets_of(6) <= 8


def test_the_other_end_may_ask_later_than_connecting_may_take():
    """As a stage does that is told of something when its iteration ends. Which of the two waits is left to chance."""
    view, _ = line(2)
    ends = view.servers[0], view.servers[2]

    def body(member):
        server, store = view.servers[member.rank], member.store()

        def met(epoch, patience):
            store.set(f"comes/{epoch}/{member.rank}", "")
            store.wait([f"comes/{epoch}/{each}" for each in range(4)], FOR_EVER)
            options = NetworkOptions(FOR_EVER, patience)
            return connect(store, View.among(view.servers, epoch), server, options, partners=[])

        began = time.monotonic()
        met(0, FOR_EVER).barrier()
        store.set(f"took/{member.rank}", str(time.monotonic() - began))
        # A busy machine takes longer, and ten times as long is more than it is late once.
        patience = max(2.0, *(10 * float(store.get(f"took/{each}")) for each in range(4)))
        for epoch in (1, 2):
            network = met(epoch, timedelta(seconds=patience))
            if server in ends:
                time.sleep(patience + 1.0 if member.rank else 0.0)
                network.link(ends[1] if server == ends[0] else ends[0])
            network.barrier()

    launch(4, body)


def test_addresses_compare_as_gloo_compares_them():
    """That of two ranks the greater one connects; gloo waits for ever if both wait."""
    address = Address.of(make_backend(0, ["W0_0", "W0_1"], DEFAULTS).directory.address(0))
    assert address.host == bytes([127, 0, 0, 1])
    ordered = [
        Address(b"\x0a\0\0\1", 9),
        Address(b"\x0a\0\0\2", 3),
        Address(b"\x0a\0\0\2", 4),
        Address(b"\xff\0\0\1", 0),
    ]
    assert all(one < other for one, other in pairwise(ordered))


def test_nobody_is_its_own_neighbour():
    assert neighbours(0, 1) == set()
    assert neighbours(0, 2) == {1}
    assert neighbours(0, 4) == {1, 3}


def test_a_pair_is_given_up_too():
    def check():
        raise Interrupted("the view is over")

    with pytest.raises(Interrupted):
        connect_pair(HashStore(), first=True, options=PATIENT, check=check)


class Far:
    """A store at which others do something between two looks of this process."""

    def __init__(self, store, meanwhile):
        self._store = store
        self._meanwhile = list(meanwhile)

    def check(self, keys):
        found = self._store.check(keys)
        if self._meanwhile:
            self._store.set(self._meanwhile.pop(), "")
        return found

    def multi_get(self, keys):
        return self._store.multi_get(keys)


@pytest.mark.parametrize("late", [[], ["b"], ["a", "b"]])
def test_who_does_not_come_in_time_is_named_and_nobody_else(late):
    store = Far(HashStore(), reversed(["a", *late]))
    wait = partial(_await, store, {"a": "W0_0", "b": "W1_0"}, {}, timedelta(0), lambda: None)
    if late == ["b"]:
        assert wait() == [b"", b""]
    else:
        with pytest.raises(ConnectionLost, match=r"^W1_0 did not come to connect$"):
            wait()


def test_what_a_stranger_takes_away_while_a_rank_waits_is_said_again(monkeypatch):
    monkeypatch.setattr(connecting, "AGAIN", 0.01)
    plain = MemoryStore()
    own, other = MeetingStore(plain, "token"), MeetingStore(plain.clone(), "token")
    said = {"own": b"address", "reached": b""}
    own.multi_set([*said], [*said.values()])

    def lose_and_come():
        for _ in range(5):
            for key in said:
                plain.delete(key)
            plain.set("own", b"a stranger's")
            assert other.multi_get([*said]) == [*said.values()]
        other.set("other", b"its address")

    with ThreadPoolExecutor(1) as pool:
        stranger = pool.submit(lose_and_come)
        assert _await(own, {"other": "W1_0"}, said, timedelta(seconds=120), lambda: None) == [b"its address"]
        stranger.result()


def test_a_key_that_is_taken_away_between_two_looks_holds_up_nobody():
    class Fleeting(MemoryStore):
        def get_all(self, keys):
            found = super().get_all(keys)
            self.delete("b")
            return found

    store = MeetingStore(Fleeting(), "token")
    store.multi_set(["a", "b"], [b"1", b"2"])
    keys = {"a": "W0_0", "b": "W1_0"}
    assert _await(store, keys, {}, timedelta(0), lambda: None) == [b"1", b"2"]
    with pytest.raises(ConnectionLost, match=r"^W1_0 did not come to connect$"):
        _await(store, keys, {}, timedelta(0), lambda: None)


def test_a_store_that_is_lost_meanwhile_is_a_lost_connection():
    listener = listen()
    port = listener.getsockname()[1]
    server = os.fork()
    if server == 0:
        store = serve(listener)
        signal.pause()
        del store
        os._exit(0)
    listener.close()
    store = TorchStore(LOOPBACK, port)
    threading.Timer(0.2, os.kill, (server, signal.SIGKILL)).start()
    with pytest.raises(ConnectionLost):
        connect(store.torch_store, View.among([Server(0, 0), Server(1, 0)]), Server(0, 0), PATIENT)
    os.waitpid(server, 0)
