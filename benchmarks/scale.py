"""How long a recovery takes with more and more servers: kill -9 at random moments, emulated servers.

Usage: python -m benchmarks.scale [--shapes 3x4 3x8 4x8 3x16] [--kills 20] [--seed 0]

A shape is pipelines x stages. The time is counted from right before the signal to the first instruction of the
iteration that is made again, whoever makes it.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.emulated_run import EmulatedRun, Recovered
from benchmarks.shapes import sizes

MICRO_BATCHES = 6
MILLISECONDS = 1e3


def measure(pipelines: int, stages: int, kills: int, seed: int) -> list[Recovered]:
    """Kill servers of a run, one after another."""
    source, found = random.Random(seed), list[Recovered]()
    with (
        tempfile.TemporaryDirectory() as temporary,
        EmulatedRun(pipelines, stages, MICRO_BATCHES, Path(temporary)) as run,
    ):
        for number in range(kills):
            victim = source.choice(run.await_whole(2))
            time.sleep(source.random() / 2)
            try:
                found.append(run.await_recovery({victim}, run.kill(victim)))
            except TimeoutError as error:
                print(f"{victim}: {error}", file=sys.stderr)
                break
            print(
                f"kill {number + 1} of {kills}: {found[-1].first:.3f} s, {run.causes[-1]}", file=sys.stderr, flush=True
            )
    return found


def row(name: str, found: list[Recovered]) -> str:
    """A line of the table."""
    firsts = [each.first * MILLISECONDS for each in found]
    phases = (
        statistics.median(getattr(each, phase) * MILLISECONDS for each in found)
        for phase in ("heard", "detect", "agree", "rebuild", "restore")
    )
    middles = " ".join(f"{each:7.0f}" for each in phases)
    return f"{name:>7} | {len(found):5} | {statistics.median(firsts):6.0f} {max(firsts):6.0f} | {middles}"


HEADER = "        | kills | median  worst |   heard  detect   agree rebuild restore (medians; all in ms)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", nargs="+", type=sizes(2), default=[(3, 4), (3, 8), (4, 8), (3, 16)])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    missed = 0
    print(HEADER)
    for pipelines, stages in arguments.shapes:
        found = measure(pipelines, stages, arguments.kills, arguments.seed)
        missed += arguments.kills - len(found)
        if found:
            print(row(f"{pipelines}x{stages}", found), flush=True)
    print(f"load {os.getloadavg()[0]:.1f}; {missed} kills were not survived in time or not made")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
