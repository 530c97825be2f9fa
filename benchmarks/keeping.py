"""What copies of every iteration's state in memory cost while nothing fails, and how fast they are brought back.

Usage: python -m benchmarks.keeping cost [--alone] [--copies 1] [--starts 3] [--pairs 12] [--seconds 2]
           [--sequence 256] [--shape 3x4]
       python -m benchmarks.keeping put [--megabytes 1 20] [--tensors 16] [--rounds 200]
       python -m benchmarks.keeping bring [--megabytes 200 1000] [--rounds 5]

``cost``: two runs with the real model, of 12 processes if nothing is said, one with --keep-in-memory and one without,
which take turns (``benchmarks.turns``), in several starts; the interval is for the median ratio of all. With
``--alone`` they have one server each, with a state of 80 MB, and leave a core free. With ``--copies 2`` each part also
goes over a connection to a keeper as on another host, whose time of the processor is not the run's.

``put``: the processor's time for a server's part of every version, half of a stage without a model: that of the server
and of its keeper, beside that of copying and summing as many bytes in one block.

``bring``: a stage's state, without a model, put by two peers and brought back with checksums: from the same host's
keeper, in turns with copying as many bytes once, by one thread, and over a connection as from another host's, in turns
with sending them once. All four end in new memory that is had in the same way, for a state is brought back to no other,
and that this machine has had a moment before: a virtual one may give back to its host what was free for two seconds,
and to get that again takes ten times as long as to copy. The processor's time is that of both sides.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
import xxhash

from benchmarks.pairs import several
from benchmarks.protection import start
from benchmarks.shapes import add_shape, paper_shaped
from benchmarks.turns import WARM_UP, Contestant, Length, interval, report, take_turns
from recycle.cli.model import quiet
from recycle.control.board.joinfile import new_token
from recycle.control.membership.view import View
from recycle.job import Job, Server
from recycle.plan.instruction import Instruction, Op
from recycle.runtime.join.handover import describe_state, make_room
from recycle.runtime.keep.keeping import Keeping, KnownKeepers
from recycle.runtime.launch.meet.keeper_finder import KeeperFinder
from recycle.state.channel import HERE
from recycle.state.client import KeeperClient
from recycle.state.directory import KeeperDirectory
from recycle.state.keeper import listen, listen_to_hosts, serve
from recycle.state.redundancy import Redundancy

ALLOWED = 1.01
VALUE = 4
"""Bytes of a number in a tensor."""
OTHERS_MEMORY = 10**9
"""Bytes that another host's keeper may hold."""
PEERS = (Server(0, 0), Server(1, 0))
LOOPBACK = "127.0.0.1"
BRINGING = (("from one's own host", "copy once", 2.0), ("from another host", "send once", 3.0))
"""What is measured, against what, and how many times as long it may take."""


def cost(measure_start: Callable[[], list[float]], starts: int) -> int:
    """Print what copies cost, in several starts; gives whether that is too much.

    Args:
        measure_start: gives the ratios of one start.
        starts: how many.
    """
    low, middle, high = interval([measure_start() for _ in range(starts)])
    print(
        f"by the clock {middle:.3f}, with 95% between {low:.3f} and {high:.3f}; {ALLOWED} is allowed; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    return int(middle > ALLOWED)


def measure(job: Job, copies: int, pairs: int, seconds: float, sequence: int, *, alone: bool) -> list[float]:
    """Print what an iteration takes with and without copies, in one start of both; gives the ratios."""
    contestants: list[Contestant] = []
    with tempfile.TemporaryDirectory() as folder, other_hosts(copies - 1):
        try:
            for redundancy in (None, Redundancy(1, 1)):
                run = Path(folder) / str(redundancy)
                contestants.append(start(job, run, sequence, True, redundancy, alone=alone))
            turns = take_turns(contestants[0], contestants[1], pairs, seconds)
            report(("off", f"copies={copies}"), turns)
        finally:
            for each in contestants:
                each.end()
    return [ours.clock / stock.clock for stock, ours in turns]


@contextmanager
def other_hosts(count: int) -> Iterator[None]:
    """Within the block, runs begin on one host that have keepers of so many others beside their own."""
    token = new_token()
    clients: list[KeeperClient] = []
    with ExitStack() as keepers:
        for number in range(count):
            with listen_to_hosts(LOOPBACK) as door:
                keepers.enter_context(keeper_process([door], token, OTHERS_MEMORY))
                clients.append(
                    KeeperClient((LOOPBACK, door.getsockname()[1]), token, f"another host's keeper {number}")
                )
        find, host_names = KeeperFinder.find, KeeperDirectory.host_names

        def find_all(finder: KeeperFinder) -> KnownKeepers:
            known = find(finder)
            return known._replace(own=[*known.own, *clients], redundancy=Redundancy(1, len(known.own) + count))

        def name_all(directory: KeeperDirectory, address: str) -> Mapping[str, str]:
            return {**host_names(directory, address), **{each.name: each.name for each in clients}}

        with (
            patch.object(KeeperFinder, "find", find_all),
            patch.object(KeeperDirectory, "host_names", name_all),
        ):
            yield
        assert all(each.copies() for each in clients), "another host's keeper got nothing"


@contextmanager
def keeper_process(listeners: Sequence[socket.socket], token: str, limit: int) -> Iterator[int]:
    """Within the block, a keeper is there; gives its process."""
    keeper = multiprocessing.get_context("fork").Process(target=serve, args=(listeners, token, limit), daemon=True)
    keeper.start()
    assert keeper.pid is not None
    try:
        yield keeper.pid
    finally:
        keeper.kill()
        keeper.join()


class Stage:
    """A stage's state without a model.

    Args:
        size: in bytes.
        tensors: of which it is.
    """

    newest = undone = 0
    shards = None

    def __init__(self, size: int, tensors: int = 16) -> None:
        self._state = {str(number): torch.rand(size // VALUE // tensors) for number in range(tensors)}

    def state(self) -> dict[str, torch.Tensor]:
        """It, by name."""
        return self._state


def put(megabytes: int, tensors: int, rounds: int) -> None:
    """Print what it takes of the processor to put a part."""
    token, stage, view = new_token(), Stage(megabytes * 10**6, tensors), View.among(PEERS)
    client = KeeperClient(HERE, token, "here")
    keeping = Keeping(partial(KnownKeepers, [client], Redundancy(1, 1)), PEERS[0], 1, stage, lambda: view, silent)

    def iterate() -> None:
        keeping.before(stage.newest, Instruction(Op.F, 0))
        keeping.before(stage.newest, Instruction(Op.REDUCE, 0))
        stage.newest += 1

    with listen(token) as listener, keeper_process([listener], token, 4 * megabytes * 10**6) as keeper:
        for _ in range(WARM_UP):
            iterate()
        own, its = time.process_time(), processor_time(keeper)
        for _ in range(rounds):
            iterate()
        own, its = time.process_time() - own, processor_time(keeper) - its
    part = torch.rand(megabytes * 10**6 // 8).numpy()
    start = time.process_time()
    for _ in range(rounds):
        xxhash.xxh3_64(part.copy().data)
    once = time.process_time() - start
    server, kept, least = (each / rounds * 1e3 for each in (own, its, once))
    print(f"{megabytes} MB: {server:.2f} ms of the server, {kept:.2f} ms of its keeper; to copy and sum {least:.2f} ms")


def processor_time(process: int) -> float:
    """Seconds of the processor that a process has used."""
    # So the kernel numbers the clocks of other processes.
    return time.clock_gettime(~process << 3 | 2)


def bring(megabytes: int, rounds: int) -> bool:
    """Print what bringing a stage back takes; gives whether it is quick enough."""
    # Threads that spin while they wait for each other would make a copy look long beside others' work.
    torch.set_num_threads(1)
    token, stage, view = new_token(), Stage(megabytes * 10**6), View.among(PEERS)
    one = Redundancy(1, 1)
    with (
        listen(token) as listener,
        listen_to_hosts(LOOPBACK) as door,
        keeper_process([listener, door], token, 4 * megabytes * 10**6) as keeper,
    ):
        addresses = HERE, (LOOPBACK, door.getsockname()[1])
        near, far = (KeeperClient(address, token, "here") for address in addresses)
        for each in PEERS:
            known = partial(KnownKeepers, [near], one, near=near.name)
            Keeping(known, each, 1, stage, lambda: view, silent).before(0, Instruction(Op.REDUCE, 0))
        own, other = (
            Keeping(partial(KnownKeepers, [client], one), PEERS[0], 1, stage, lambda: view, silent)
            for client in (near, far)
        )
        expected = stage.state()
        ways: dict[str, Callable[[], object]] = {
            "copy once": lambda: copy(expected),
            "from one's own host": lambda: own.fetch(0),
            "send once": lambda: send(expected),
            "from another host": lambda: other.fetch(0),
        }
        for keeping in (own, other):
            found = keeping.fetch(0)
            assert all(torch.equal(found[name], each) for name, each in expected.items())
            del found
        lengths: dict[str, list[Length]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                copy(expected)
                lengths[name].append(length_of(way, keeper))
    quick = True
    for name, against, allowed in BRINGING:
        pairs = list(zip(lengths[name], lengths[against], strict=True))
        ratios = Length(*(statistics.median(ours[place] / theirs[place] for ours, theirs in pairs) for place in (0, 1)))
        took, once = (statistics.median(each.clock for each in lengths[which]) * 1e3 for which in (name, against))
        print(
            f"{megabytes} MB {name} {took:.1f} ms, to {against} {once:.1f} ms: {ratios.clock:.2f} times, {allowed} is "
            f"allowed; {ratios.processor:.2f} times of the processor",
            flush=True,
        )
        quick &= ratios.clock <= allowed
    return quick


def silent(kind: str, text: str) -> None:
    """Nobody is told anything."""


def copy(state: dict[str, torch.Tensor]) -> None:
    """Copy a state once, into new memory."""
    for name, room in new_memory(state).items():
        room.copy_(state[name])


def new_memory(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Memory for a state as it is had to bring one back."""
    _, room = make_room(describe_state(0, state))
    return room


def send(state: dict[str, torch.Tensor]) -> None:
    """Send a state once over a connection as between hosts, into new memory."""
    with socket.create_server((LOOPBACK, 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    room = [each.view(torch.uint8).numpy().data for each in new_memory(state).values()]

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


def length_of(way: Callable[[], object], keeper: int) -> Length:
    """How long it takes, with the processor's time of a keeper beside that of this process."""
    start, spent = time.perf_counter(), time.process_time() + processor_time(keeper)
    way()
    return Length(time.perf_counter() - start, time.process_time() + processor_time(keeper) - spent)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    what = parser.add_subparsers(dest="what", required=True)
    costs = what.add_parser("cost")
    costs.add_argument("--alone", action="store_true", help="one server, with a larger state")
    costs.add_argument("--copies", type=int, default=1, choices=(1, 2), help="hosts that hold it, one's own among them")
    costs.add_argument("--starts", type=int, default=3)
    costs.add_argument("--pairs", type=several, default=12, help="of turns, in each start")
    costs.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    costs.add_argument("--sequence", type=int, default=256, help="tokens in a sample; four samples")
    add_shape(costs)
    puts = what.add_parser("put")
    puts.add_argument("--megabytes", type=int, nargs="+", default=[1, 20])
    puts.add_argument("--tensors", type=int, default=16, help="of which the state is; a model's has hundreds")
    puts.add_argument("--rounds", type=int, default=200)
    brings = what.add_parser("bring")
    brings.add_argument("--megabytes", type=int, nargs="+", default=[200, 1000])
    brings.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    quiet()
    if arguments.what == "cost":
        pairs, seconds, sequence = arguments.pairs, arguments.seconds, arguments.sequence
        job = paper_shaped(arguments.shape)
        one_start = partial(measure, job, arguments.copies, pairs, seconds, sequence, alone=arguments.alone)
        return cost(one_start, arguments.starts)
    if arguments.what == "put":
        for megabytes in arguments.megabytes:
            put(megabytes, arguments.tensors, arguments.rounds)
        return 0
    missed = [megabytes for megabytes in arguments.megabytes if not bring(megabytes, arguments.rounds)]
    print(f"load {os.getloadavg()[0]:.1f}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
