"""Deaths under a distributed optimizer, in the project's own trainer and under the flag, a run after the other.

Usage: python -m benchmarks.shards FILE [--rows own-4x1 own-2x2 flag-4x1 ...] [--kills 60] [--apiece 2] [--seconds 0]

Rows are of PP 2, named by the trainer, DP x TP, and whether Megatron's overlaps are asked for. Each run is one of
``benchmarks.ranks`` with --distributed-optimizer and so many kills apiece, of the row that has the fewest so far; the
own trainer's are with --exact. What came of it is written to the file at once, as a line of JSON. The same command goes
on where the file ends, until there are so many kills in all; or with --seconds begins no run after that time. The flag
needs Megatron's training code.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROWS = {
    "own-4x1": "--pipelines 4 --ranks 1 --exact",
    "own-2x2": "--pipelines 2 --ranks 2 --exact",
    "flag-4x1": "--pipelines 4 --ranks 1 --flag",
    "flag-2x2": "--pipelines 2 --ranks 2 --flag",
    "flag-4x1-overlap": "--pipelines 4 --ranks 1 --flag --overlap",
    "flag-2x2-overlap": "--pipelines 2 --ranks 2 --flag --overlap",
}


def run(row: str, seed: int, kills: int) -> dict[str, object]:
    """One run; what came of it."""
    words = ["-m", "benchmarks.ranks", "--distributed-optimizer", *ROWS[row].split()]
    words += ["--kills", str(kills), "--seed", str(seed)]
    start = time.monotonic()
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    said = (done.stdout.splitlines() or done.stderr.splitlines() or [""])[-1]
    seconds = round(time.monotonic() - start)
    return {"row": row, "seed": seed, "kills": kills, "good": not done.returncode, "seconds": seconds, "said": said}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--rows", nargs="+", choices=[*ROWS], default=[*ROWS])
    parser.add_argument("--kills", type=int, default=60, help="of all rows together")
    parser.add_argument("--apiece", type=int, default=2, help="kills of a run")
    parser.add_argument("--seconds", type=float, default=0.0, help="after which no run begins; 0 for no end")
    arguments = parser.parse_args()
    start = time.monotonic()
    lines = arguments.file.read_text().splitlines() if arguments.file.exists() else []
    found = [each for each in map(json.loads, lines) if each["row"] in arguments.rows]
    with arguments.file.open("a") as file:
        while sum(each["kills"] for each in found) < arguments.kills:
            if arguments.seconds and time.monotonic() > start + arguments.seconds:
                break
            runs = Counter(each["row"] for each in found)
            row = min(arguments.rows, key=lambda each: runs[each])
            found.append(run(row, runs[row], arguments.apiece))
            file.write(json.dumps(found[-1]) + "\n")
            file.flush()
    print("row              | good runs | kills in them")
    for row in arguments.rows:
        mine = [each for each in found if each["row"] == row]
        good = [each for each in mine if each["good"]]
        print(f"{row:16} | {len(good)} of {len(mine)}    | {sum(each['kills'] for each in good)}")
    return int(not all(each["good"] for each in found))


if __name__ == "__main__":
    sys.exit(main())
