"""Whether anybody is taken for dead who is not: a run of emulated servers beside processes that never sleep.

Usage: python -m benchmarks.false_deaths [--minutes 10] [--loops 8] [--shape 3x4]
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.emulated_run import EmulatedRun
from benchmarks.interrupted import until_interrupted
from benchmarks.scale import MICRO_BATCHES
from benchmarks.shapes import add_shape


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Some processes that never sleep."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--loops", type=int, default=8)
    add_shape(parser)
    arguments = parser.parse_args()
    pipelines, stages = arguments.shape
    with (
        tempfile.TemporaryDirectory() as temporary,
        busy(arguments.loops),
        EmulatedRun(pipelines, stages, MICRO_BATCHES, Path(temporary)) as run,
    ):
        run.await_whole(1)
        begin = time.monotonic()
        with until_interrupted():
            while (left := begin + 60 * arguments.minutes - time.monotonic()) > 0:
                print(f"{left:.0f} s left, {len(run.causes)} views", file=sys.stderr, flush=True)
                time.sleep(min(30.0, left))
        minutes, causes = (time.monotonic() - begin) / 60, run.causes[1:]
    print(f"{minutes:.1f} minutes beside {arguments.loops} busy processes, load {os.getloadavg()[0]:.1f}")
    print(f"{len(causes)} views were lost" + "".join(f"; {cause}" for cause in causes))
    return int(bool(causes))


if __name__ == "__main__":
    sys.exit(main())
