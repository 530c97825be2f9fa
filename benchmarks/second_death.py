"""What a second death in the middle of a recovery costs: kill -9 of two servers, the second one at a random moment.

Usage: python -m benchmarks.second_death [--trials 60] [--within 0.12] [--seed 0] [--shape 3x4]

Trials with one death and with two take turns. The time is counted from right before the last signal to the first
instruction of the iteration that is made again.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.emulated_run import EmulatedRun, Recovered
from benchmarks.interrupted import until_interrupted
from benchmarks.scale import HEADER, MICRO_BATCHES, row
from benchmarks.shapes import add_shape
from recycle.job import Server


def choose(source: random.Random, servers: tuple[Server, ...], count: int) -> list[Server]:
    """Some servers that leave every stage a live one."""
    while True:
        chosen = source.sample(servers, count)
        left = set(servers) - set(chosen)
        if {each.stage for each in left} == {each.stage for each in servers}:
            return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=60, help="of each kind")
    parser.add_argument("--within", type=float, default=0.12, help="seconds between the deaths, at most")
    parser.add_argument("--seed", type=int, default=0)
    add_shape(parser)
    arguments = parser.parse_args()
    pipelines, stages = arguments.shape
    source = random.Random(arguments.seed)
    found: dict[int, list[Recovered]] = {1: [], 2: []}
    with (
        tempfile.TemporaryDirectory() as temporary,
        EmulatedRun(pipelines, stages, MICRO_BATCHES, Path(temporary)) as run,
        until_interrupted(),
    ):
        for number in range(2 * arguments.trials):
            count = 1 + number % 2
            victims = choose(source, run.await_whole(2), count)
            time.sleep(source.random() / 4)
            moment = run.kill(victims[0])
            waited = 0.0
            if count == 2:
                waited = source.random() * arguments.within
                time.sleep(waited)
                moment = run.kill(victims[1])
            recovered = run.await_recovery(set(victims), moment)
            found[count].append(recovered)
            text = (
                f"{number + 1} of {2 * arguments.trials}: {count} dead, {waited:.3f} s apart: {recovered.first:.3f} s"
            )
            print(f"{text}, {recovered.views} views", file=sys.stderr, flush=True)
    print(HEADER)
    for count, all_found in found.items():
        if all_found:
            print(row(f"{count} dead", all_found))
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
