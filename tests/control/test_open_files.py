"""What keeps a process from opening files has its own name."""

import os
import resource
import socket
from contextlib import suppress

import pytest

from harness.hosts import hosts, leave_few_ports, missing, no_port_free
from harness.local import launch
from recycle.control.membership.doors import HostDoor
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.open_files import allow_most, why_none_opens
from recycle.control.store.etcd_cluster import EtcdCluster
from recycle.control.store.etcd_store import EtcdStore
from recycle.control.store.local_store import LocalStore
from recycle.control.store.tcp_store import TorchStore


def torch_store(port):
    return TorchStore("127.0.0.1", port, 1.0)


def etcd_store(port):
    return EtcdStore(EtcdCluster.parse(f"etcd://127.0.0.1:{port}/run"), patience=0.1).get("key")


def local_store(_port):
    return LocalStore(HostDoor("token", "store"))


@pytest.mark.parametrize("connect", [torch_store, etcd_store, local_store])
def test_a_store_that_is_not_reached_because_nothing_more_opens_is_not_blamed(connect):
    def body(member):
        "host".encode("idna")  # of a module that Python reads at the first name
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        listener = socket.create_server(("127.0.0.1", 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, most))
        opened = []
        with suppress(OSError):
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        said = r"cannot be reached: Too many open files: this process may have 128; raise ulimit -Hn"
        with pytest.raises(StoreLost, match=said):
            connect(listener.getsockname()[1])
        allow_most()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
        assert why_none_opens() == ""

    launch(1, body)


@pytest.mark.skipif(bool(missing()), reason="a network with few ports takes root on Linux")
@pytest.mark.parametrize("connect", [torch_store, etcd_store])
def test_a_store_that_is_not_reached_because_no_port_is_free_is_not_blamed(connect):
    with hosts(1) as (host,):
        leave_few_ports(host)

        def body(member):
            host.enter_network()
            listener = socket.create_server(("127.0.0.1", 30_000))
            said = (
                r"cannot be reached: no port is free here \(.*\): net.ipv4.ip_local_port_range is 40000 to 40003; make"
            )
            with no_port_free(), pytest.raises(StoreLost, match=said):
                connect(listener.getsockname()[1])
            assert why_none_opens() == ""

        launch(1, body)
