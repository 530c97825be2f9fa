"""Recovery and transport over stand-ins for NCCL, whose members die at random moments: does anything hang, or go wrong?

Usage: python -m benchmarks.stand_in threads [--deaths 2000] [--seed 0]
       python -m benchmarks.stand_in library [--kills 1000] [--seed 0]

Half of the deaths are over communicators that run beside each other, and half with one queue for each device, as with
CUDA_DEVICE_MAX_CONNECTIONS=1. In about half of the rounds the next death comes before the last one is recovered from.
What does not end within a minute hangs, and every sum is compared with what it has to be.

``threads``: recovery, 3 x 2, whose servers are threads that die and come back. ``library``: the transport over NCCL
on a library that has NCCL's names, between 4 processes of which one is killed again and again.
"""

import argparse
import os
import statistics
import sys

from benchmarks.shared import run_part
from harness.library_kills import Failed as LibraryFailed
from harness.library_kills import LibraryKills
from harness.stand_in_library import lacking
from harness.stand_in_run import Failed, StandInRun

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")


def threads() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--deaths", type=int, default=2000, help="in both halves together")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(
        "| queues of a device | deaths | second deaths | iterations | sums compared | garbage, not used "
        "| wrong or hung | round, median s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for one_queue in (False, True):
        name = "one" if one_queue else "many"

        def progress(died: int, name: str = name) -> None:
            print(f"{name}: {died} deaths", file=sys.stderr, flush=True)

        try:
            outcome = StandInRun(arguments.seed + one_queue, one_queue).run(arguments.deaths // 2, progress)
        except Failed as failed:
            print(f"{name}: {failed}", file=sys.stderr)
            return 1
        median = statistics.median(outcome.seconds)
        counts = f"{outcome.deaths} | {outcome.second} | {outcome.iterations} | {outcome.sums} | {outcome.garbage}"
        print(f"| {name} | {counts} | 0 | {median:.2f} |", flush=True)
    return 0


def library() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=1000, help="in both halves together")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if why := lacking():
        print(f"the library cannot be had here: {why}", file=sys.stderr)
        return 1
    print("| queues of a process | kills | while a view was made | compared | wrong or hung | round, median s | held |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for one_queue in (False, True):
        name = "one" if one_queue else "many"
        try:
            outcome = LibraryKills(arguments.seed + one_queue, one_queue).run(arguments.kills // 2)
        except LibraryFailed as failed:
            print(f"{name}: {failed}", file=sys.stderr)
            return 1
        counts = f"{outcome.kills} | {outcome.unmade} | {outcome.compared}"
        print(f"| {name} | {counts} | 0 | {statistics.median(outcome.seconds):.2f} | {outcome.held} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_part(__doc__, {"threads": threads, "library": library}))
