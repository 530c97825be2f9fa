"""What protection costs while nothing fails: agents, heartbeats and kept versions, against the same run without.

Usage: python -m benchmarks.protection [--turns 6] [--iterations 40]

Protected and unprotected runs of 12 processes with the real model take turns. Of each run the first iterations, in
which processes still start, are left out; each protected run is compared with the two unprotected ones around it. Where
others use the machine, the processor's time says more than the clock; with 12 processes on a few cores, all of which
are busy, the two go together.
"""

import argparse
import os
import statistics
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from recycle.cli.model import quiet
from recycle.cli.train import planner
from recycle.faults.menu import Faults
from recycle.jobfile import load_job
from recycle.plan.mode import Mode
from recycle.plan.recording import IterationLine, Line

ALLOWED = 1.02
WARM_UP = 8


class Length(NamedTuple):
    """Of an iteration, in seconds: of its slowest server by the clock, and of the processor for all processes."""

    clock: float
    processor: float


def measure(iterations: int, protected: bool) -> Length:
    """The median length of an iteration, and the mean of the processor's time for one."""
    from recycle.megatron.model import ModelOptions
    from recycle.megatron.run import Run
    from recycle.megatron.training import train

    job = load_job(Path("schedules/paper.toml"), {})
    plan = planner(job, Mode())(())
    lengths: dict[int, list[float]] = {}
    spent: dict[int, float] = {}

    def watch(line: Line) -> None:
        if isinstance(line, IterationLine):
            lengths.setdefault(line.step, []).append(line.seconds)
            if line.step in (WARM_UP, iterations - 2) and line.step not in spent:
                spent[line.step] = processor_time()

    with tempfile.TemporaryDirectory() as folder:
        run = Run(plan, ModelOptions(dropout=0.1), iterations, Path(folder) / "run", protected=protected)
        train(run, watch, planner(job, plan.mode), Faults())
    clock = statistics.median(max(each) for step, each in lengths.items() if step >= WARM_UP)
    return Length(clock, (spent[iterations - 2] - spent[WARM_UP]) / (iterations - 2 - WARM_UP))


def processor_time() -> float:
    """Seconds that this process and all that came from it have used."""
    parents, times = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The second field is a name in brackets, which may hold anything.
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid] = int(fields[1])
            times[pid] = int(fields[11]) + int(fields[12])
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(times.get(pid, 0) for pid in mine) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=40)
    arguments = parser.parse_args()
    quiet()
    ratios: list[Length] = []
    before = measure(arguments.iterations, False)
    for _ in range(arguments.turns):
        protected = measure(arguments.iterations, True)
        after = measure(arguments.iterations, False)
        ratios.append(
            Length(*(2 * each / (one + two) for each, one, two in zip(protected, before, after, strict=True)))
        )
        for name, mine, others, ratio in zip(Length._fields, protected, after, ratios[-1], strict=True):
            print(f"{name:<10} protected {mine * 1e3:7.1f} ms, unprotected {others * 1e3:7.1f} ms, ratio {ratio:.3f}")
        before = after
    medians = Length(*(statistics.median(each) for each in zip(*ratios, strict=True)))
    print(f"median ratio {medians.clock:.3f} by the clock and {medians.processor:.3f} of the processor's time,")
    print(f"load {os.getloadavg()[0]:.1f}; {ALLOWED} is allowed")
    return int(medians.clock > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
