"""What it takes to connect a view: time, sockets, and what is read from the store, for more and more processes.

Usage: python -m benchmarks.network [--processes 12 24 48] [--views 8] [--everybody]

Three pipelines with one dead server, so that some micro-batches are re-routed. The time is from the first process that
begins to the last that has connected, and on to the last that has exchanged a tensor over each link of its plan, summed
with its peers and summed with all. With --everybody each server connects to all others, and not to those of its plan.
"""

import argparse
import socket
import statistics
import struct
import time
from collections.abc import Collection
from pathlib import Path

import msgspec
import torch

from harness.examples import paper_plan
from recycle.cli.model import quiet
from recycle.control.membership.view import View
from recycle.job import Server
from recycle.plan.plan import Plan
from recycle.runtime.launch.process.local import LocalProcess, launch
from recycle.runtime.net.connect import connect
from recycle.runtime.net.network import Network
from recycle.runtime.net.transfer_key import STATE

PIPELINES = 3
DEAD = Server(0, 1)
MILLISECONDS = 1e3
RECEIVED = 128
"""Where Linux keeps the number of bytes received, in what it tells of a connection."""


class Sample(msgspec.Struct, array_like=True):
    """What one process saw of one view.

    Attributes:
        view: its number.
        begun: when, on the clock that all processes of a machine share.
        connected: when.
        exchanged: when.
        sockets: that were opened.
        read: bytes from the store.
    """

    view: int
    begun: float
    connected: float
    exchanged: float
    sockets: int
    read: int


def exchange(network: Network, partners: Collection[Server]) -> None:
    """Once over everything that an iteration uses."""
    links = [network.link(each) for each in sorted(partners)]
    under_way = [each.receive(torch.zeros(64), STATE) for each in links]
    under_way += [each.send(torch.zeros(64), STATE) for each in links]
    for each in under_way:
        each.wait()
    network.peers.sum(torch.zeros(64))
    network.all.sum(torch.zeros(1))


def measure(plan: Plan, views: int, everybody: bool) -> list[Sample]:
    """Connect in some views, one after another."""
    servers = tuple(plan.programs)
    samples: list[Sample] = []

    def body(process: LocalProcess) -> None:
        server, store = servers[process.rank], process.store()
        partners = plan.partners(server)
        for number in range(views):
            store.add(f"ready/{number}", 1)
            while store.add(f"ready/{number}", 0) < len(servers):
                time.sleep(0.01)
            sockets, read = count(process.port)
            begun = time.monotonic()
            named = None if everybody else partners
            network = connect(store, View.among(servers, number), server, partners=named)
            connected = time.monotonic()
            after = count(process.port)
            exchange(network, partners)
            exchanged = time.monotonic()
            sample = Sample(number, begun, connected, exchanged, after[0] - sockets, after[1] - read)
            process.report(msgspec.msgpack.encode(sample))
            network.barrier()

    launch(len(servers), body, lambda _, content: samples.append(msgspec.msgpack.decode(content, type=Sample)))
    return samples


def count(port: int) -> tuple[int, int]:
    """The sockets of this process, and what those to a port have received in bytes."""
    sockets = read = 0
    for place in Path("/proc/self/fd").iterdir():
        try:
            if not place.readlink().name.startswith("socket:"):
                continue
            with socket.fromfd(int(place.name), socket.AF_INET, socket.SOCK_STREAM) as found:
                sockets += 1
                if found.getpeername()[1] == port:
                    told = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RECEIVED + 8)
                    read += struct.unpack_from("=Q", told, RECEIVED)[0]
        except OSError:
            continue  # it has no peer, or was the listing's own
    return sockets, read


def main() -> None:
    """Print a line for each number of processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[12, 24, 48])
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--everybody", action="store_true")
    arguments = parser.parse_args()
    quiet()
    for processes in arguments.processes:
        stages = processes // PIPELINES
        plan = paper_plan(failed=[DEAD], pipelines=PIPELINES, stages=stages, limit=stages, micro_batches=stages)
        samples = measure(plan, arguments.views, arguments.everybody)
        connected, exchanged = [], []
        for number in range(arguments.views):
            of_view = [each for each in samples if each.view == number]
            begun = min(each.begun for each in of_view)
            connected.append(MILLISECONDS * (max(each.connected for each in of_view) - begun))
            exchanged.append(MILLISECONDS * (max(each.exchanged for each in of_view) - begun))
        print(
            f"{processes - 1} servers: connected in {statistics.median(connected):.0f} ms, first exchange after"
            f" {statistics.median(exchanged):.0f} ms (worst {max(exchanged):.0f}); in a member at most"
            f" {max(each.sockets for each in samples)} sockets and {max(each.read for each in samples)} bytes read",
            flush=True,
        )


if __name__ == "__main__":
    main()
