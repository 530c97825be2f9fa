"""What copies of every iteration's state in memory cost while nothing fails, and how fast they are brought back.

Usage: python -m benchmarks.keeping cost [--alone] [--pairs 36] [--seconds 2] [--sequence 256] [--shape 3x4]
       python -m benchmarks.keeping put [--megabytes 1 20] [--rounds 200]
       python -m benchmarks.keeping bring [--megabytes 200 1000] [--rounds 5]

``cost``: two runs with the real model, of 12 processes if nothing is said, one with --keep-in-memory and one without,
which take turns (``benchmarks.turns``). With ``--alone`` they have one server each, with a state of 80 MB, and leave a
core free.

``put``: the processor's time for a server's part of every version, half of a stage without a model: that of the server
and of its keeper, beside that of copying and summing as many bytes in one block.

``bring``: a stage's state, without a model, put by two peers and brought back with checksums: from the same host's
keeper, in turns with copying as many bytes once, and over a connection as from another host's, in turns with sending
them once.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import xxhash

from benchmarks.pairs import several
from benchmarks.protection import start
from benchmarks.shapes import add_shape, paper_shaped
from benchmarks.turns import WARM_UP, Contestant, report, take_turns
from recycle.cli.model import quiet
from recycle.control.joinfile import new_token
from recycle.control.view import View
from recycle.job import Job, Server
from recycle.plan.instruction import Instruction, Op
from recycle.runtime.keep.keeping import Keeping, KnownKeepers
from recycle.state.client import KeeperClient
from recycle.state.keeper import keeper_address, listen, listen_to_hosts, serve
from recycle.state.redundancy import Redundancy

ALLOWED = 1.01
PEERS = (Server(0, 0), Server(1, 0))
HERE = "127.0.0.1"
BRINGING = (("from one's own host", "copy once", 2.0), ("from another host", "send once", 3.0))
"""What is measured, against what, and how many times as long it may take."""


def cost(job: Job, pairs: int, seconds: float, sequence: int, *, alone: bool) -> int:
    contestants: list[Contestant] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for redundancy in (None, Redundancy(1, 1)):
                run = Path(folder) / str(redundancy)
                contestants.append(start(job, run, sequence, True, redundancy, alone=alone))
            ratios = report(("off", "copies=1"), take_turns(contestants[0], contestants[1], pairs, seconds))
        finally:
            for each in contestants:
                each.end()
    print(f"{ALLOWED} is allowed by the clock")
    return int(ratios.clock > ALLOWED)


class Stage:
    """A stage's state without a model.

    Args:
        size: in bytes.
    """

    newest = undone = 0
    shards = None

    def __init__(self, size: int) -> None:
        self._state = {str(number): torch.rand(size // 64) for number in range(16)}

    def state(self) -> dict[str, torch.Tensor]:
        """It, by name."""
        return self._state


def put(megabytes: int, rounds: int) -> None:
    """Print what it takes of the processor to put a part."""
    token, stage, view = new_token(), Stage(megabytes * 10**6), View.among(PEERS)
    with listen(token) as listener:
        keeper = multiprocessing.get_context("fork").Process(
            target=serve, args=([listener], token, 4 * megabytes * 10**6), daemon=True
        )
        keeper.start()
    client = KeeperClient(keeper_address(token), token, "here")
    keeping = Keeping(partial(KnownKeepers, [client], Redundancy(1, 1)), PEERS[0], 1, stage, lambda: view, silent)

    def iterate() -> None:
        keeping.before(stage.newest, Instruction(Op.F, 0))
        keeping.before(stage.newest, Instruction(Op.REDUCE, 0))
        stage.newest += 1

    try:
        for _ in range(WARM_UP):
            iterate()
        assert keeper.pid is not None
        own, its = time.process_time(), processor_time(keeper.pid)
        for _ in range(rounds):
            iterate()
        own, its = time.process_time() - own, processor_time(keeper.pid) - its
    finally:
        keeper.kill()
        keeper.join()
    part = torch.rand(megabytes * 10**6 // 8).numpy()
    start = time.process_time()
    for _ in range(rounds):
        xxhash.xxh3_64(part.copy().data)
    once = time.process_time() - start
    server, kept, least = (each / rounds * 1e3 for each in (own, its, once))
    print(f"{megabytes} MB: {server:.2f} ms of the server, {kept:.2f} ms of its keeper; to copy and sum {least:.2f} ms")


def processor_time(process: int) -> float:
    """Seconds of the processor that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bring(megabytes: int, rounds: int) -> bool:
    """Print what bringing a stage back takes; gives whether it is quick enough."""
    token, stage, view = new_token(), Stage(megabytes * 10**6), View.among(PEERS)
    with listen(token) as listener, listen_to_hosts(HERE) as door:
        keeper = multiprocessing.get_context("fork").Process(
            target=serve, args=([listener, door], token, 4 * megabytes * 10**6), daemon=True
        )
        keeper.start()
        port = door.getsockname()[1]
    near, far = (KeeperClient(address, token, "here") for address in (keeper_address(token), (HERE, port)))
    one = Redundancy(1, 1)
    try:
        for each in PEERS:
            known = partial(KnownKeepers, [near], one, near=near.name)
            Keeping(known, each, 1, stage, lambda: view, silent).before(0, Instruction(Op.REDUCE, 0))
        own, other = (
            Keeping(partial(KnownKeepers, [client], one), PEERS[0], 1, stage, lambda: view, silent)
            for client in (near, far)
        )
        expected = stage.state()
        target = {name: torch.zeros_like(each) for name, each in expected.items()}

        def copy() -> None:
            for name, each in expected.items():
                target[name].copy_(each)

        ways: dict[str, Callable[[], object]] = {
            "copy once": copy,
            "from one's own host": lambda: own.fetch(0),
            "send once": lambda: send(expected),
            "from another host": lambda: other.fetch(0),
        }
        for keeping in (own, other):
            found = keeping.fetch(0)
            assert all(torch.equal(found[name], each) for name, each in expected.items())
            del found
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                times[name].append(seconds_of(way))
    finally:
        keeper.kill()
        keeper.join()
    quick = True
    for name, against, allowed in BRINGING:
        ratio = statistics.median(ours / theirs for ours, theirs in zip(times[name], times[against], strict=True))
        took, once = (statistics.median(times[each]) * 1e3 for each in (name, against))
        print(
            f"{megabytes} MB {name} {took:.1f} ms, to {against} {once:.1f} ms: {ratio:.2f} times, {allowed} is allowed",
            flush=True,
        )
        quick &= ratio <= allowed
    return quick


def silent(kind: str, text: str) -> None:
    """Nobody is told anything."""


def send(state: dict[str, torch.Tensor]) -> None:
    """Send a state once over a connection as between hosts, into memory that was never used."""
    with socket.create_server((HERE, 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    room = [torch.empty_like(each).view(torch.uint8).numpy().data for each in state.values()]

    def receive() -> None:
        for piece in room:
            left = piece
            while left:
                left = left[theirs.recv_into(left) :]

    thread = threading.Thread(target=receive)
    thread.start()
    for each in state.values():
        ours.sendall(each.view(torch.uint8).numpy().data)
    thread.join()
    ours.close()
    theirs.close()


def seconds_of(way: Callable[[], object]) -> float:
    start = time.perf_counter()
    way()
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    what = parser.add_subparsers(dest="what", required=True)
    costs = what.add_parser("cost")
    costs.add_argument("--alone", action="store_true", help="one server, with a larger state")
    costs.add_argument("--pairs", type=several, default=36)
    costs.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    costs.add_argument("--sequence", type=int, default=256, help="tokens in a sample; four samples")
    add_shape(costs)
    puts = what.add_parser("put")
    puts.add_argument("--megabytes", type=int, nargs="+", default=[1, 20])
    puts.add_argument("--rounds", type=int, default=200)
    brings = what.add_parser("bring")
    brings.add_argument("--megabytes", type=int, nargs="+", default=[200, 1000])
    brings.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    quiet()
    if arguments.what == "cost":
        job = paper_shaped(arguments.shape)
        return cost(job, arguments.pairs, arguments.seconds, arguments.sequence, alone=arguments.alone)
    if arguments.what == "put":
        for megabytes in arguments.megabytes:
            put(megabytes, arguments.rounds)
        return 0
    missed = [megabytes for megabytes in arguments.megabytes if not bring(megabytes, arguments.rounds)]
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
