"""Recovery over the stand-in for NCCL, 3 x 2: servers, which are threads, die at random moments and come back.

Usage: python -m benchmarks.stand_in [--deaths 2000] [--seed 0]

Half of the deaths are over communicators that run beside each other, and half with one queue for each device, as with
CUDA_DEVICE_MAX_CONNECTIONS=1. In about half of the rounds a second server dies while the first death is recovered from.
A recovery that does not end within a minute is a hang, and every reduction is compared with what it has to be.
"""

import argparse
import os
import statistics
import sys

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")

from harness.stand_in_run import Failed, StandInRun


def main() -> int:
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


if __name__ == "__main__":
    sys.exit(main())
