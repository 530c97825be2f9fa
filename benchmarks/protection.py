"""What protection costs while nothing fails: agents, heartbeats and kept versions, against the same run without.

Usage: python -m benchmarks.protection [--turns 4] [--iterations 40]

Protected and unprotected runs of 12 processes with the real model take turns. Of each run the first iterations, in
which processes still start, are left out; each protected run is compared with the two unprotected ones around it.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from recycle.cli.model import quiet
from recycle.cli.train import planner
from recycle.faults.menu import Faults
from recycle.jobfile import load_job
from recycle.plan.mode import Mode
from recycle.plan.recording import IterationLine, Line

ALLOWED = 1.02
WARM_UP = 8


def median_iteration(iterations: int, protected: bool) -> float:
    """The median length of an iteration on its slowest server, in seconds."""
    from recycle.megatron.model import ModelOptions
    from recycle.megatron.run import Run
    from recycle.megatron.training import train

    job = load_job(Path("schedules/paper.toml"), {})
    plan = planner(job, Mode())(())
    lengths: dict[int, list[float]] = {}

    def watch(line: Line) -> None:
        if isinstance(line, IterationLine):
            lengths.setdefault(line.step, []).append(line.seconds)

    with tempfile.TemporaryDirectory() as folder:
        run = Run(plan, ModelOptions(dropout=0.1), iterations, Path(folder) / "run", protected=protected)
        train(run, watch, planner(job, plan.mode), Faults())
    return statistics.median(max(each) for step, each in lengths.items() if step >= WARM_UP)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=40)
    arguments = parser.parse_args()
    quiet()
    ratios = []
    before = median_iteration(arguments.iterations, False)
    print(f"unprotected {before * 1e3:7.1f} ms, load {os.getloadavg()[0]:.1f}")
    for _ in range(arguments.turns):
        protected = median_iteration(arguments.iterations, True)
        after = median_iteration(arguments.iterations, False)
        ratios.append(protected / ((before + after) / 2))
        print(f"protected   {protected * 1e3:7.1f} ms, unprotected {after * 1e3:7.1f} ms, ratio {ratios[-1]:.3f}")
        before = after
    print(f"median ratio {statistics.median(ratios):.3f}, and {ALLOWED} is allowed")
    return int(statistics.median(ratios) > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
