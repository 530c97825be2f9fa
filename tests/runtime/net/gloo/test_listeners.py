"""Where gloo listens, nobody gets in but the ranks of a group, while they connect."""

import os
import socket
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

from harness.local import launch
from harness.sockets import listening
from recycle.control.membership.addresses import LOOPBACK
from recycle.control.membership.view import View
from recycle.job import Server
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.net.connect import connect, connect_pair
from recycle.runtime.net.gloo.connecting import LazyGroup, connect_groups
from recycle.runtime.net.gloo.devices import share_devices
from recycle.runtime.net.gloo.groups import make_backend, make_connected_backend
from recycle.runtime.net.gloo.listeners import make_device
from recycle.runtime.net.network import DEFAULTS, NetworkOptions
from recycle.runtime.net.transfer_key import STATE

SERVERS = [Server(pipeline, 0) for pipeline in range(4)]
SOON = 0.3
"""Seconds after which a connection that was not made on this machine will not be: the kernel makes one at once."""


def takes(door):
    """Whether somebody who connects is let in."""
    with socket.socket(door.family, door.kind) as connection:
        connection.settimeout(SOON)
        try:
            connection.connect(door.address)
        except TimeoutError:
            return False
        return True


def open_doors():
    return [each for each in listening([os.getpid()]) if takes(each)]


def listener():
    found = socket.create_server((LOOPBACK, 0))
    return found.getsockname(), found


def test_nobody_gets_in_while_no_rank_is_to_come():
    def body(member):
        network = connect(member.store(), View.among(SERVERS), SERVERS[member.rank])
        network.barrier()
        assert len(listening([os.getpid()])) == 2, "of all and of the peers"
        assert not open_doors()
        # Of two that are no neighbours in a ring, either may be the one that connects.
        if member.rank in (0, 2):
            other = network.link(SERVERS[2 - member.rank])
            sent, received = torch.tensor([float(member.rank)]), torch.zeros(1)
            transfers = [other.send(sent, STATE), other.receive(received, STATE)]
            for each in transfers:
                each.wait()
            assert received.item() == 2 - member.rank
            assert not open_doors()
        network.barrier()
        if member.rank < 2:
            total = torch.ones(1)
            network.group("two", SERVERS[:2]).sum(total)
            assert total.item() == 2
            assert not open_doors()
        network.barrier()

    launch(4, body)


def test_nor_at_a_pair_and_the_ranks_of_a_server():
    def body(member):
        link = connect_pair(member.store(), member.rank == 0, DEFAULTS)
        backend = make_connected_backend(dist.PrefixStore("own", member.store()), member.rank, 2, DEFAULTS)
        assert len(listening([os.getpid()])) == 2
        assert not open_doors()
        tensor = torch.ones(1)
        backend.allreduce([tensor]).wait()
        assert tensor.item() == 2
        if member.rank:
            link.send(tensor, STATE).wait()
        else:
            link.receive(tensor, STATE).wait()

    launch(2, body)


def test_nor_at_the_device_of_torchs_own_groups_but_while_one_is_made():
    def body(member):
        share_devices(LOOPBACK)
        dist.init_process_group("gloo", store=member.store(), rank=member.rank, world_size=2)
        for _ in range(3):
            assert len(listening([os.getpid()])) == 1
            assert not open_doors()
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=dist.new_group([0, 1]))
            assert tensor.item() == 2
        dist.barrier()
        # Torch may abort a process that ends while threads of gloo's are at work.
        os._exit(0)

    launch(2, body)


def test_partners_of_one_that_gives_up_still_get_in_and_learn_of_it():
    options = NetworkOptions(rebuild_timeout=timedelta(milliseconds=100))
    backend = make_backend(0, ["W0_0", "W1_0"], options)
    group = LazyGroup("group", backend, 0, [1])
    with pytest.raises(ConnectionLost, match="W1_0 did not come"):
        connect_groups(HashStore(), [group], options.rebuild_timeout, lambda: None)
    assert open_doors()


def test_it_is_open_until_the_last_of_those_that_connect_is_through():
    (address, own), listens = make_device(listener)
    with listens.open():
        with listens.open():
            pass
        socket.create_connection(address, SOON).close()
    with pytest.raises(TimeoutError):
        socket.create_connection(address, SOON)
    with listens.open():
        socket.create_connection(address, SOON).close()
    with socket.create_server((LOOPBACK, 0)) as other, own:
        # From now on, the number is another socket's.
        os.dup2(other.fileno(), own.fileno())
        with listens.open():
            pass
        socket.create_connection(other.getsockname(), SOON).close()


def test_if_another_thread_begins_to_listen_meanwhile_none_of_both_is_closed():
    def both():
        made = listener()
        others = threading.Thread(target=lambda: more.append(listener()))
        others.start()
        others.join()
        return made

    more = []
    made, listens = make_device(both)
    with listens.open():
        pass
    for address, own in (made, *more):
        socket.create_connection(address, SOON).close()
        own.close()
