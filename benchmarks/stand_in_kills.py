"""The transport over NCCL on the stand-in that is a library: one of 4 processes is killed again and again.

Usage: python -m benchmarks.stand_in_kills [--kills 1000] [--seed 0]

Half of the kills are with one queue for each process, as with CUDA_DEVICE_MAX_CONNECTIONS=1. In about half of the
rounds the next kill comes before the view without the last one is at work. Every sum and every transfer is compared
with what it has to be; a view that is not at work within a minute hangs.
"""

import argparse
import os
import statistics
import sys

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")

from harness.library_kills import Failed, LibraryKills
from harness.stand_in_library import lacking


def main() -> int:
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
        except Failed as failed:
            print(f"{name}: {failed}", file=sys.stderr)
            return 1
        counts = f"{outcome.kills} | {outcome.unmade} | {outcome.compared}"
        print(f"| {name} | {counts} | 0 | {statistics.median(outcome.seconds):.2f} | {outcome.held} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
