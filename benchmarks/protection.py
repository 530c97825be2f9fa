"""What protection costs while nothing fails: agents, heartbeats and kept versions, against the same run without.

Usage: python -m benchmarks.protection [--pairs 36] [--seconds 2] [--sequence 64 256]

Two runs of 12 processes with the real model are there all the time, one protected and one not, and take turns of a few
seconds: one of them is stopped while the other one goes on. A shared machine is a tenth quicker in one minute than in
the next, and to start 12 processes takes some of that; so runs that begin and end for every turn meet different
machines, and many short turns meet the same one. A turn ends with an iteration, and either run goes first in every
other pair. Single turns still differ by some percent, so there are many, and a median of fewer says little.

With 64 tokens in a sample, the default of ``recycle train``, there are so few of them for each parameter that the copy
of the state before a step weighs more than in any real run; with 256, a micro-batch has 1,024 tokens.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from recycle.cli.model import quiet
from recycle.cli.train import planner
from recycle.faults.menu import Faults
from recycle.jobfile import load_job
from recycle.plan.mode import Mode
from recycle.plan.recording import IterationLine, Line

ALLOWED = 1.02
# As many iterations as nobody waits for; the runs are ended from outside.
ENDLESS = 1_000_000
WARM_UP = 8


class Length(NamedTuple):
    """Of an iteration, in seconds: by the clock, and of the processor for all processes."""

    clock: float
    processor: float


class Contestant:
    """A run in a process group of its own, which goes on only in its turns.

    Args:
        folder: of the run.
        sequence: tokens in a sample.
        protected: whether it survives failures.
    """

    def __init__(self, folder: Path, sequence: int, protected: bool) -> None:
        self._done, done = Pipe(duplex=False)
        self._pid = os.fork()
        if not self._pid:
            os.setpgid(0, 0)
            _train(folder, sequence, protected, done)
            os._exit(1)  # it does not come to its end
        done.close()
        with suppress(OSError):  # both sides try, because nobody knows who is first
            os.setpgid(self._pid, self._pid)
        for _ in range(WARM_UP):
            self._done.recv_bytes()
        self._signal(signal.SIGSTOP)

    def turn(self, seconds: float) -> Length:
        """Go on for some time, until an iteration is done; gives the mean length of one."""
        spent = _processor_time(self._pid)
        start = time.perf_counter()
        self._signal(signal.SIGCONT)
        iterations = 0
        while time.perf_counter() - start < seconds:
            self._done.recv_bytes()
            iterations += 1
        clock = time.perf_counter() - start
        self._signal(signal.SIGSTOP)
        return Length(clock / iterations, (_processor_time(self._pid) - spent) / iterations)

    def end(self) -> None:
        """Go on no more."""
        self._signal(signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _signal(self, number: int) -> None:
        os.killpg(self._pid, number)


def _train(folder: Path, sequence: int, protected: bool, done: Connection) -> None:
    from recycle.megatron.model import ModelOptions
    from recycle.megatron.run import Run
    from recycle.megatron.training import train

    job = load_job(Path("schedules/paper.toml"), {})
    plan = planner(job, Mode())(())
    told: dict[int, int] = {}

    def watch(line: Line) -> None:
        if isinstance(line, IterationLine):
            told[line.step] = told.get(line.step, 0) + 1
            if told[line.step] == len(plan.programs):
                del told[line.step]
                done.send_bytes(b"")

    options = ModelOptions(dropout=0.1, sequence=sequence)
    train(Run(plan, options, ENDLESS, folder, protected=protected), watch, planner(job, plan.mode), Faults())


def _processor_time(root: int) -> float:
    """Seconds that a process and all that came from it have used."""
    parents, times = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The second field is a name in brackets, which may hold anything.
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid] = int(fields[1])
            times[pid] = int(fields[11]) + int(fields[12])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sum(times.get(pid, 0) for pid in found) / os.sysconf("SC_CLK_TCK")


def compare(sequence: int, pairs: int, seconds: float) -> Length:
    """Print what a protected iteration takes and what the same one without; gives the ratios."""
    lengths: tuple[list[Length], list[Length]] = [], []
    with tempfile.TemporaryDirectory() as folder:
        contestants: list[Contestant] = []
        try:
            for protected in (False, True):
                contestants.append(Contestant(Path(folder) / str(protected), sequence, protected))
            for turn in range(2 * pairs):
                which = (turn + turn // 2) % 2
                lengths[which].append(contestants[which].turn(seconds))
        finally:
            for each in contestants:
                each.end()
    ratios = []
    for name, without, protected in zip(Length._fields, *(zip(*each, strict=True) for each in lengths), strict=True):
        found = [one / other for one, other in zip(protected, without, strict=True)]
        ratios.append(statistics.median(found))
        quarters = statistics.quantiles(found, n=4)
        print(
            f"{name:<10} protected {statistics.median(protected) * 1e3:7.1f} ms, unprotected "
            f"{statistics.median(without) * 1e3:7.1f} ms, median ratio {ratios[-1]:.3f}, "
            f"middle half {quarters[0]:.3f} to {quarters[2]:.3f}"
        )
    return Length(*ratios)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=36)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--sequence", type=int, nargs="+", default=[64, 256], help="tokens in a sample; four samples")
    arguments = parser.parse_args()
    quiet()
    most = 0.0
    for sequence in arguments.sequence:
        print(f"{4 * sequence} tokens in a micro-batch, {arguments.pairs} pairs of turns:")
        most = max(most, compare(sequence, arguments.pairs, arguments.seconds).clock)
    print(f"load {os.getloadavg()[0]:.1f}; {ALLOWED} is allowed")
    return int(most > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
