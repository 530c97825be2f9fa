"""What copies of every iteration's state in memory cost while nothing fails, and how fast they are brought back.

Usage: python -m benchmarks.keeping cost [--pairs 36] [--seconds 2] [--sequence 256]
       python -m benchmarks.keeping bring [--megabytes 200 1000] [--rounds 5]

``cost``: two runs of 12 processes with the real model, one with --keep-in-memory and one without, which take turns
(``benchmarks.turns``).

``bring``: a stage's state, without a model, put by two peers and brought back from the same host's keeper, with
checksums; in turns with copying as many bytes once, and with sending them once over a socket of the same kind.
"""

import argparse
import multiprocessing
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.protection import start
from benchmarks.turns import Contestant, report, take_turns
from recycle.cli.model import quiet
from recycle.control.joinfile import new_token
from recycle.control.view import View
from recycle.job import Server
from recycle.plan.instruction import Instruction, Op
from recycle.runtime.keep.keeping import Keeping, KnownKeepers
from recycle.state.client import KeeperClient
from recycle.state.keeper import keeper_address, listen, serve

ALLOWED = 1.01
PEERS = (Server(0, 0), Server(1, 0))


def cost(pairs: int, seconds: float, sequence: int) -> int:
    contestants: list[Contestant] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for copies in (0, 1):
                contestants.append(start(Path(folder) / str(copies), sequence, protected=True, copies=copies))
            ratios = report(("off", "copies=1"), take_turns(*contestants, pairs, seconds))
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

    def __init__(self, size: int) -> None:
        self._state = {str(number): torch.rand(size // 64) for number in range(16)}

    def state(self) -> dict[str, torch.Tensor]:
        """It, by name."""
        return self._state


def bring(megabytes: int, rounds: int) -> None:
    token, stage, view = new_token(), Stage(megabytes * 10**6), View.among(PEERS)
    with listen(token) as listener:
        keeper = multiprocessing.get_context("fork").Process(
            target=serve, args=([listener], token, 4 * megabytes * 10**6), daemon=True
        )
        keeper.start()
    client = KeeperClient(keeper_address(token), token, "here")
    try:
        known = KnownKeepers([client], near=client.name)
        peers = [Keeping(known, each, 1, stage, lambda: view, lambda kind, text: None) for each in PEERS]
        for each in peers:
            each.before(0, Instruction(Op.REDUCE, 0))
        expected = stage.state()
        target = {name: torch.zeros_like(each) for name, each in expected.items()}

        def copy() -> None:
            for name, each in expected.items():
                target[name].copy_(each)

        ways = {"copy once": copy, "send once": lambda: send(expected), "bring back": lambda: peers[0].fetch(0)}
        found = peers[0].fetch(0)
        assert all(torch.equal(found[name], each) for name, each in expected.items())
        del found
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                times[name].append(seconds_of(way))
    finally:
        keeper.kill()
        keeper.join()
    brought = times["bring back"]
    for name in ways:
        ratio = statistics.median(one / other for one, other in zip(brought, times[name], strict=True))
        took = statistics.median(times[name]) * 1e3
        print(f"{megabytes} MB, {name:<10} {took:8.1f} ms; to bring back takes {ratio:.2f} times as long")


def send(state: dict[str, torch.Tensor]) -> None:
    """Send a state once over a socket of the kind that keepers have, into memory that was never used."""
    ours, theirs = socket.socketpair()
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
    costs.add_argument("--pairs", type=int, default=36)
    costs.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    costs.add_argument("--sequence", type=int, default=256, help="tokens in a sample; four samples")
    brings = what.add_parser("bring")
    brings.add_argument("--megabytes", type=int, nargs="+", default=[200, 1000])
    brings.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    quiet()
    if arguments.what == "cost":
        return cost(arguments.pairs, arguments.seconds, arguments.sequence)
    for megabytes in arguments.megabytes:
        bring(megabytes, arguments.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
