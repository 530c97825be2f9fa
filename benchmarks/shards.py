"""Deaths under a distributed optimizer, in the project's own trainer and under the flag, a run after the other.

Usage: python -m benchmarks.shards FILE [--rows own-4x1 own-2x2 flag-4x1 ...] [--kills 60] [--apiece 2] [--seconds 0]

Rows are of PP 2, named by the trainer, DP x TP, and whether Megatron's overlaps are asked for. Each run is one of
``benchmarks.ranks`` with --distributed-optimizer and so many kills apiece, of the row that has the fewest so far; the
own trainer's are with --exact. What came of it is written to the file at once, as a line of JSON. The same command goes
on where the file ends, until there are so many kills in all; or with --seconds begins no run after that time. The flag
needs Megatron's training code.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.interrupted import until_interrupted
from benchmarks.run_file import RunFile

ROWS = {
    "own-4x1": "--pipelines 4 --ranks 1 --exact",
    "own-2x2": "--pipelines 2 --ranks 2 --exact",
    "flag-4x1": "--pipelines 4 --ranks 1 --flag",
    "flag-2x2": "--pipelines 2 --ranks 2 --flag",
    "flag-4x1-overlap": "--pipelines 4 --ranks 1 --flag --overlap",
    "flag-2x2-overlap": "--pipelines 2 --ranks 2 --flag --overlap",
}


def run(row: str, seed: int, kills: int) -> dict[str, Any]:
    """One run; what came of it."""
    words = ["-m", "benchmarks.ranks", "--distributed-optimizer", *ROWS[row].split()]
    words += ["--kills", str(kills), "--seed", str(seed)]
    start = time.monotonic()
    command = [sys.executable, *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            printed, errors = process.communicate()
        except KeyboardInterrupt:
            # Its servers as well.
            os.killpg(process.pid, signal.SIGKILL)
            raise
    said = (printed.splitlines() or errors.splitlines() or [""])[-1]
    seconds = round(time.monotonic() - start)
    return {"row": row, "seed": seed, "kills": kills, "good": not process.returncode, "seconds": seconds, "said": said}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--rows", nargs="+", choices=[*ROWS], default=[*ROWS])
    parser.add_argument("--kills", type=int, default=60, help="of all rows together")
    parser.add_argument("--apiece", type=int, default=2, help="kills of a run")
    parser.add_argument("--seconds", type=float, default=0.0, help="after which no run begins; 0 for no end")
    arguments = parser.parse_args()
    start = time.monotonic()
    found = RunFile(arguments.file, arguments.rows)
    with until_interrupted():
        while sum(each["kills"] for each in found.runs) < arguments.kills:
            if arguments.seconds and time.monotonic() > start + arguments.seconds:
                break
            row = min(arguments.rows, key=lambda each: len(found.of(each)))
            found.add(run(row, len(found.of(row)), arguments.apiece))
    print("row              | good runs | kills in them")
    for row in arguments.rows:
        mine = found.of(row)
        good = [each for each in mine if each["good"]]
        print(f"{row:16} | {len(good)} of {len(mine)}    | {sum(each['kills'] for each in good)}")
    return int(not all(each["good"] for each in found.runs))


if __name__ == "__main__":
    sys.exit(main())
