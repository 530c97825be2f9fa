"""What ``recycle watch`` costs the run that is watched, against the spread of the same run when nobody looks.

Usage: python -m benchmarks.watching [--starts 3] [--rounds 12] [--seconds 2] [--shape 3x4]

A run with the real model, of 12 processes if nothing is said, goes on in turns (``benchmarks.turns``), three to a
round: unwatched, watched, unwatched. In a watched turn the page's questions are asked as the page asks them, twice a
second. The ratio of a watched turn to the mean of those beside it is what watching costs, and that of the two unwatched
ones is what turns differ by anyway. What a browser takes to draw is not counted: it is elsewhere, or its user's own.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import msgspec

from benchmarks.pairs import several
from benchmarks.protection import start
from benchmarks.shapes import add_shape, paper_shaped
from benchmarks.turns import Contestant, Length, interval
from recycle.cli.model import quiet
from recycle.job import Job

WATCH = "from recycle.cli import main; main()"
PAUSE = 0.5
"""Seconds between two looks, as in ``view/page/live.js``."""


class Viewer:
    """Asks a served page's questions, as long as it looks.

    Args:
        address: of the page.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._version = -1

    def look(self) -> None:
        """Look once: how the run stands, and its time line if anything is new."""
        with urlopen(f"{self._address}state") as answer:
            version = msgspec.json.decode(answer.read())["version"]
        if version != self._version:
            self._version = version
            with urlopen(f"{self._address}timeline") as answer:
                answer.read()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look again and again meanwhile."""
        enough = threading.Event()

        def keep_looking() -> None:
            while not enough.wait(PAUSE):
                self.look()

        # What was written while nobody looked is none of this turn's cost.
        self.look()
        thread = threading.Thread(target=keep_looking)
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join()


def take_rounds(run: Contestant, viewer: Viewer, rounds: int, seconds: float) -> list[tuple[Length, Length, Length]]:
    """Rounds of an unwatched turn, a watched one, and an unwatched one."""
    found = []
    for _ in range(rounds):
        before = run.turn(seconds)
        with viewer.looking():
            watched = run.turn(seconds)
        found.append((before, watched, run.turn(seconds)))
    return found


def measure(job: Job, rounds: int, seconds: float) -> tuple[list[float], list[float]]:
    """In one start of a run: what watched turns take over unwatched ones, and unwatched ones over unwatched ones."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        run = start(job, folder, 64, True)
        serving = subprocess.Popen(
            [sys.executable, "-c", WATCH, "watch", folder, "--port", "0"], stderr=subprocess.PIPE, text=True
        )
        try:
            assert serving.stderr is not None
            said = re.search(r"http://\S+", serving.stderr.readline())
            assert said is not None
            found = take_rounds(run, Viewer(said[0]), rounds, seconds)
        finally:
            serving.kill()
            serving.wait()
            run.end()
    watched = [2 * each.clock / (before.clock + after.clock) for before, each, after in found]
    return watched, [after.clock / before.clock for before, _, after in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=several, default=12, help="of three turns, in each start")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    add_shape(parser)
    arguments = parser.parse_args()
    quiet()
    starts = [
        measure(paper_shaped(arguments.shape), arguments.rounds, arguments.seconds) for _ in range(arguments.starts)
    ]
    low, middle, high = interval([watched for watched, _ in starts])
    unwatched = [ratio for _, ratios in starts for ratio in ratios]
    quarters = statistics.quantiles(unwatched, n=4)
    print(f"{arguments.starts} starts, {arguments.rounds} rounds each, load {os.getloadavg()[0]:.1f}")
    print(f"watched over unwatched {middle:.3f}, with 95% between {low:.3f} and {high:.3f}")
    print(f"unwatched over unwatched {quarters[1]:.3f}, middle half {quarters[0]:.3f} to {quarters[2]:.3f}")
    return int(middle - 1 > quarters[2] - quarters[0])


if __name__ == "__main__":
    sys.exit(main())
