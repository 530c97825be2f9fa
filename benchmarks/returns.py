"""Crashes and automatic returns in one run of ``recycle train``: is the view whole again each time, and the loss equal?

Usage: python -m benchmarks.returns [--crashes 50] [--seed 0] [--exact] [--shape 3x4]

Workers are killed one after another with SIGKILL, each once the view is whole; their agents start them again. In the
end the run is told to end, and the same iterations are trained again with nobody killed.
"""

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path

from benchmarks.host_jobs import train_words
from benchmarks.hosts import FAR
from benchmarks.interrupted import until_interrupted
from benchmarks.shapes import add_shape
from harness.processes import family, send_signal, title
from harness.started import TRAIN, Started, losses, newest_view, wait_until

ENDLESS = 1_000_000
PATIENCE = 120.0


def is_whole(folder: Path, epoch: int, servers: int) -> bool:
    """Whether all servers are in a view after another one."""
    view = newest_view(folder)
    return view.epoch > epoch and len(view.servers) == servers


def worker_of(server: str, *roots: int) -> int:
    """The process of a server below one of some others."""
    for process in chain.from_iterable(map(family, roots)):
        if title(process).split(" rank")[0] == f"recycle: {server}":
            return process
    raise RuntimeError(f"{server} has no process")


def crash(run: Started, folder: Path, server: str, servers: int) -> float:
    """Kill a server of a whole view; gives the seconds until it is whole again."""
    view = newest_view(folder)
    killed = time.monotonic()
    send_signal(worker_of(server, run.process.pid), signal.SIGKILL)
    wait_until(lambda: is_whole(folder, view.epoch, servers), PATIENCE)
    return time.monotonic() - killed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--crashes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--exact", action="store_true", help="sum exactly, and expect equal losses to the bit")
    add_shape(parser)
    arguments = parser.parse_args()
    pipelines, stages = arguments.shape
    source, times = random.Random(arguments.seed), list[float]()
    with tempfile.TemporaryDirectory() as temporary:
        folder, undisturbed = Path(temporary) / "crashes", Path(temporary) / "undisturbed"
        # Each server may crash as often as it is chosen.
        run = Started(
            [
                *TRAIN,
                *train_words(folder, ENDLESS, arguments.shape, exact=arguments.exact),
                "--restarts",
                str(arguments.crashes + 1),
            ]
        )
        try:
            run.wait_for("iteration 2/")
            with until_interrupted():
                for number in range(arguments.crashes):
                    time.sleep(source.random())
                    server = f"W{source.randrange(pipelines)}_{source.randrange(stages)}"
                    times.append(crash(run, folder / "run", server, pipelines * stages))
                    text = f"{number + 1} of {arguments.crashes}: whole {times[-1]:.1f} s after the crash of {server}"
                    print(text, file=sys.stderr, flush=True)
            if not times:
                return 1
            print(f"whole again after {statistics.median(times):.1f} s, at worst {max(times):.1f} s", flush=True)
            run.process.send_signal(signal.SIGTERM)
            status = run.ended(PATIENCE)
        finally:
            run.kill()
        found = losses(folder / "run")
        print(f"{max(found) + 1} iterations that nothing befalls, to compare", file=sys.stderr, flush=True)
        again = Started([*TRAIN, *train_words(undisturbed, max(found) + 1, arguments.shape, exact=arguments.exact)])
        assert again.ended(3600) == 0, again.output
        expected = losses(undisturbed / "run")
    complete = list(found) == list(expected)
    pairs = zip(chain(*found.values()), chain(*expected.values()), strict=False)
    apart = [abs(one - other) / abs(other) for one, other in pairs]
    print(f"{len(times)} crashes; whole again after {statistics.median(times):.1f} s, at worst {max(times):.1f} s")
    print(f"{len(expected)} iterations, all there: {complete}; losses at most {max(apart):.1e} apart; status {status}")
    print(f"load {os.getloadavg()[0]:.1f}")
    return int(not complete or max(apart) > FAR or status != 128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
