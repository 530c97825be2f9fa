"""What the lifeline gains: how long after a kill an agent learns of it, from the robust lock and from a pidfd.

Usage: python -m benchmarks.death_notice [--kills 15] [--gibibytes 0 1 2]

A worker with so much resident memory is killed; both ways are watched for the same kill. The loaded machine has two
busy processes for each of its cores besides.
"""

import argparse
import mmap
import os
import select
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from recycle.control.host.lifeline import Lifeline

SIZES = (0, 1, 2)
BUSY_PER_CORE = 2
MILLISECONDS = 1e3
GIBIBYTE = 1 << 30


def kill_once(gibibytes: int) -> tuple[float, float]:
    """Milliseconds from the kill until the lock is handed over, and until the pidfd is readable."""
    lifeline = Lifeline()
    worker = os.fork()
    if not worker:
        memory = mmap.mmap(-1, gibibytes * GIBIBYTE or mmap.PAGESIZE)
        for place in range(0, len(memory), mmap.PAGESIZE):
            memory[place] = 1
        lifeline.hold()
        time.sleep(600)
    while not lifeline.is_held:
        time.sleep(0.01)
    ends = {lifeline.watch(): 0, os.pidfd_open(worker): 1}
    time.sleep(0.05)  # the thread of the lifeline waits by then
    noticed = [0.0, 0.0]
    left = list(ends)
    start = time.monotonic()
    os.kill(worker, signal.SIGKILL)
    while left:
        for end in select.select(left, [], [])[0]:
            noticed[ends[end]] = (time.monotonic() - start) * MILLISECONDS
            left.remove(end)
    os.waitpid(worker, 0)
    for end in ends:
        os.close(end)
    return noticed[0], noticed[1]


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Other work for the machine."""
    started = []
    for _ in range(processes):
        process = os.fork()
        if not process:
            while True:
                pass
        started.append(process)
    try:
        yield
    finally:
        for process in started:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=15, help="for each row")
    parser.add_argument("--gibibytes", type=int, nargs="+", default=SIZES, help="resident in the worker, a row each")
    arguments = parser.parse_args()
    kills = arguments.kills
    print(f"{'machine':8} {'resident':>8} {'lock':>8} {'pidfd':>8} {'gain':>8}   medians of {kills} kills, in ms")
    for name, processes in (("quiet", 0), ("loaded", BUSY_PER_CORE * (os.cpu_count() or 1))):
        for size in arguments.gibibytes:
            with busy(processes):
                found = [kill_once(size) for _ in range(kills)]
            lock, pidfd = (statistics.median(column) for column in zip(*found, strict=True))
            gain = statistics.median(second - first for first, second in found)
            print(f"{name:8} {size:4} GiB {lock:8.1f} {pidfd:8.1f} {gain:8.1f}", flush=True)


if __name__ == "__main__":
    main()
