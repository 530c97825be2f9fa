"""The parts of ``scripts/gpu-check speed`` that time one thing each which decides how fast a list is executed.

None of them needs a second GPU. They run on a CPU as well, at sizes at which they say nothing.
"""

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch

from recycle.control.membership.view import ServerRank
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.runtime.device import DeviceClock, DeviceKind, settle, take_device
from recycle.runtime.net.network import Alone

RANKS = 8
"""Of a server whose gathers are timed."""

MIB = 1 << 20
PAYLOAD = {"cuda": 64 * MIB, "cpu": MIB}
"""Bytes that are gathered, and copied to the host at a time."""

WIDTH = {"cuda": 4096, "cpu": 128}
"""Of the square matrices of a product."""

REPEATS = {"cuda": 50, "cpu": 10}
CONNECTIONS = (1, 8)
SLEEP = 50.0
"""Milliseconds for which a stream is kept busy."""


def time_passes(kind: DeviceKind) -> str:
    """What a gather by sums does beside the sum, against what torch's own does: a copy of the rank's part."""
    device = _take(kind)
    ranks = RankCollectives(ServerRank(0, RANKS))
    ranks.connect(cast("Any", SimpleNamespace(ranks=Alone())))
    part = torch.ones(PAYLOAD[kind] // RANKS // 2, dtype=torch.bfloat16, device=device)
    whole = torch.ones(PAYLOAD[kind] // 2, dtype=torch.bfloat16, device=device)
    room = torch.empty_like(whole)

    def scatter(reduce: Callable[[], torch.Tensor]) -> None:
        part.copy_(reduce()[: len(part)])

    ways = {
        "gather by sums": lambda: ranks.gather(part),
        "torch's own": lambda: room[: len(part)].copy_(part),
        "scatter by sums": lambda: scatter(lambda: ranks.reduce(whole, torch.distributed.ReduceOp.SUM)),
        "torch's own there": lambda: part.copy_(whole[: len(part)]),
    }
    found = ", ".join(f"{name} {_milliseconds(act, REPEATS[kind]):.3f} ms" for name, act in ways.items())
    return f"local passes of {RANKS} ranks and {PAYLOAD[kind] / MIB:.0f} MiB on {kind}: {found}"


def time_events(kind: DeviceKind) -> str:
    """What a mark of an instruction costs, and how long a device is idle when it is waited for."""
    device, clock, count = _take(kind), DeviceClock(), 20 * REPEATS[kind]
    matrix = torch.ones(WIDTH[kind], WIDTH[kind], device=device)
    torch.mm(matrix, matrix)
    settle()
    begun = time.perf_counter()
    marks = [clock.mark() for _ in range(count)]
    marked = time.perf_counter()
    for each in marks:
        each.wait()
    waited = time.perf_counter()
    clock.times(marks)
    ended = time.perf_counter()
    record, wait, read = (1e6 * each / count for each in (marked - begun, waited - marked, ended - waited))

    def waiting() -> None:
        torch.mm(matrix, matrix)
        settle()

    ahead = _milliseconds(lambda: torch.mm(matrix, matrix), count)
    gap = 1000 * (_milliseconds(waiting, count) - ahead)
    return (
        f"an event on {kind}: record {record:.2f} us, wait for one that has passed {wait:.2f} us, elapsed "
        f"{read:.2f} us; a wait between two products costs {gap:.1f} us, at {ahead:.3f} ms each"
    )


def time_launches(kind: DeviceKind) -> str:
    """Whether what is launched behind a stream that is busy begins, with one connection and with several.

    A connection is what a process says before it first uses its GPU, so each number has a process of its own.
    """
    found = []
    for connections in CONNECTIONS:
        words = [sys.executable, "-W", "ignore", "-c", "from scripts.gpu_speed import launch_behind; launch_behind()"]
        environment = os.environ | {"CUDA_DEVICE_MAX_CONNECTIONS": str(connections)}
        said = subprocess.run([*words, kind], env=environment, capture_output=True, text=True, check=True)
        found.append(f"{connections} connections: {said.stdout.strip()}")
    return f"behind a stream that is busy for {SLEEP:.0f} ms on {kind}, {'; '.join(found)}"


def launch_behind() -> None:
    """The process of ``time_launches``: says when a product ends that is launched then, and how long launches take."""
    kind: DeviceKind = "cuda" if sys.argv[-1] == "cuda" else "cpu"
    device = _take(kind)
    matrix = torch.ones(WIDTH[kind], WIDTH[kind], device=device)
    lane = _Lane(kind)
    torch.mm(matrix, matrix)
    settle()
    begun = time.perf_counter()
    lane.start(_sleep)
    torch.mm(matrix, matrix)
    launched = 1000 * (time.perf_counter() - begun)
    settle()
    done = 1000 * (time.perf_counter() - begun)
    lane.join()
    # Memory is given back by another thread, which waits for the device there.
    lane.start(_sleep)
    freeing = threading.Thread(target=torch.cuda.empty_cache)
    freeing.start()
    begun = time.perf_counter()
    torch.add(matrix, 1.0)
    freed = 1000 * (time.perf_counter() - begun)
    freeing.join()
    lane.join()
    sys.stdout.write(
        f"launched after {launched:.1f} ms, done after {done:.1f} ms, and while memory is freed launched after "
        f"{freed:.1f} ms\n"
    )


def time_copies(kind: DeviceKind) -> str:
    """Copies into host memory that are pinned, on a stream of their own, beside products."""
    device = _take(kind)
    matrix = torch.ones(WIDTH[kind], WIDTH[kind], device=device)
    state = torch.ones(PAYLOAD[kind] // 4, device=device)
    host = torch.empty(PAYLOAD[kind] // 4, pin_memory=kind == "cuda")
    lane, count = _Lane(kind), REPEATS[kind]

    def copy() -> None:
        for _ in range(count):
            host.copy_(state, non_blocking=True)

    def multiply() -> None:
        for _ in range(count):
            torch.mm(matrix, matrix)

    def copy_beside() -> None:
        lane.start(copy)
        multiply()
        settle()
        lane.join()

    def copy_alone() -> None:
        lane.start(copy)
        lane.join()

    alone, products, both = (_milliseconds(act, 3) for act in (copy_alone, multiply, copy_beside))
    rate = count * host.nbytes / 1e6 / alone
    return (
        f"{count} copies of {PAYLOAD[kind] / MIB:.0f} MiB on {kind}: {rate:.1f} GB/s; {count} products of "
        f"{WIDTH[kind]} x {WIDTH[kind]} {products:.1f} ms, both beside each other {both:.1f} ms, where the longer one "
        f"alone takes {max(alone, products):.1f} ms"
    )


def _take(kind: DeviceKind) -> torch.device:
    """The device; a CPU that others use as well is asked for one thread."""
    torch.set_num_threads(1)
    return take_device(kind, 0)


def _milliseconds(act: Callable[[], object], count: int) -> float:
    """How long each of some calls takes on the device, in the median of three rounds."""
    rounds = []
    act()
    for _ in range(3):
        settle()
        begun = time.perf_counter()
        for _ in range(count):
            act()
        settle()
        rounds.append(1000 * (time.perf_counter() - begun) / count)
    return statistics.median(rounds)


def _sleep() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # In cycles of a clock of 1 to 2 GHz.
        sleep: Any = torch.cuda._sleep  # noqa: SLF001 - nothing else keeps a stream busy for so long
        sleep(int(SLEEP * 1.5e6))
    else:
        time.sleep(SLEEP / 1000)


class _Lane:
    """A stream beside that which computes; on a CPU, a thread.

    Args:
        kind: of device.
    """

    def __init__(self, kind: DeviceKind) -> None:
        stream: Any = torch.cuda.Stream  # it has no types
        self._stream = stream() if kind == "cuda" else None
        self._thread: threading.Thread | None = None

    def start(self, act: Callable[[], None]) -> None:
        """Start something there."""
        if self._stream is None:
            self._thread = threading.Thread(target=act)
            self._thread.start()
            return
        with torch.cuda.stream(self._stream):
            act()

    def join(self) -> None:
        """Wait until it is over."""
        if self._stream is not None:
            self._stream.synchronize()
        if self._thread is not None:
            self._thread.join()
