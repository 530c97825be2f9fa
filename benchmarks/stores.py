"""The stores in which members can meet, served for a benchmark."""

import multiprocessing
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple
from urllib.request import urlopen

from harness.etcd import etcd
from harness.processes import seconds_of
from recycle.control.store.etcd_store import EtcdStore
from recycle.control.store.store import Store
from recycle.control.store.tcp_store import TorchStore, listen, serve

STORES = ("embedded", "etcd")
MEMBERS = 3
PATIENCE = 120.0


class Served(NamedTuple):
    """A store that is served.

    Attributes:
        connect: makes a connection, in any process.
        processes: that serve it.
        metrics: where each of them says what it has done; none for the run's own.
    """

    connect: Callable[[], Store]
    processes: Sequence[int]
    metrics: Sequence[str] = ()

    @property
    def has_relays(self) -> bool:
        """Whether the members of a host ask it through a relay."""
        return bool(self.metrics)

    def requests(self) -> int:
        """How many requests it has answered, watches included; 0 where it does not say."""
        return sum(_started(each, ("etcdserverpb.KV", "etcdserverpb.Watch")) for each in self.metrics)

    def watches(self) -> int:
        """How many of these are watches."""
        return sum(_started(each, ("etcdserverpb.Watch",)) for each in self.metrics)

    def processor(self) -> float:
        """Seconds of the processor that they have used."""
        return sum(seconds_of(each) for each in self.processes)


@contextmanager
def served(kind: str) -> Iterator[Served]:
    """Serve a store of a kind: the run's own, or an etcd cluster of three members."""
    if kind == "etcd":
        with etcd(MEMBERS) as cluster:
            connect = partial(EtcdStore, cluster.cluster, "benchmark", PATIENCE)
            metrics = [f"http://{host}:{port}/metrics" for host, port in (each.address for each in cluster.members)]
            yield Served(connect, [each.process.pid for each in cluster.members], metrics)
        return
    listener = listen()
    host, port = listener.getsockname()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(listener,), daemon=True)
    server.start()
    assert server.pid is not None
    yield Served(partial(TorchStore, host, port, PATIENCE), [server.pid])
    server.kill()
    server.join()


def _serve(listener: socket.socket) -> None:
    served = serve(listener)
    signal.pause()
    del served


def _started(address: str, services: Sequence[str]) -> int:
    with urlopen(address) as answer:
        lines = answer.read().decode().splitlines()
    counted = [
        each
        for each in lines
        if each.startswith("grpc_server_started_total{") and any(f'service="{name}"' in each for name in services)
    ]
    return sum(int(float(each.rpartition(" ")[2])) for each in counted)
