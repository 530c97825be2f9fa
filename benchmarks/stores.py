"""The stores in which members can meet, served for a benchmark."""

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from harness.etcd import etcd
from recycle.control.etcd_store import EtcdStore
from recycle.control.store import Store
from recycle.control.tcp_store import TorchStore, listen, serve

STORES = ("embedded", "etcd")
MEMBERS = 3
PATIENCE = 120.0


class Served(NamedTuple):
    """A store that is served.

    Attributes:
        connect: makes a connection, in any process.
        processes: that serve it.
    """

    connect: Callable[[], Store]
    processes: Sequence[int]

    def processor(self) -> float:
        """Seconds of the processor that they have used."""
        return sum(_used(each) for each in self.processes)


@contextmanager
def served(kind: str) -> Iterator[Served]:
    """Serve a store of a kind: the run's own, or an etcd cluster of three members."""
    if kind == "etcd":
        with etcd(MEMBERS) as cluster:
            connect = partial(EtcdStore, cluster.cluster, "benchmark", PATIENCE)
            yield Served(connect, [each.process.pid for each in cluster.members])
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


def _used(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
