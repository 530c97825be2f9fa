"""What protection costs while nothing fails: agents, heartbeats and kept versions, against the same run without.

Usage: python -m benchmarks.protection [--starts 3] [--pairs 12] [--seconds 2] [--sequence 64 256] [--shape 3x4]

Two runs with the real model, of 12 processes if nothing is said, are there all the time, one protected and one not, and
take turns (``benchmarks.turns``). Two runs differ by some percent for as long as they live, whatever they do, so both
are started several times; the interval is for the median ratio, from starts and pairs that are drawn again and again.

With 64 tokens in a sample, the default of ``recycle train``, there are so few of them for each parameter that the copy
of the state before a step weighs more than in any real run; with 256, a micro-batch has 1,024 tokens.
"""

import argparse
import os
import sys
import tempfile
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.pairs import several
from benchmarks.shapes import PAPER, add_shape, paper_shaped
from benchmarks.turns import Contestant, interval, report, take_turns
from recycle.cli.model import quiet
from recycle.faults.menu import Faults
from recycle.job import Job
from recycle.jobfile import load_job
from recycle.plan.mode import Mode
from recycle.planner.source import plan_maker
from recycle.record.recording import IterationLine, Line
from recycle.state.redundancy import Redundancy

ALLOWED_MIDDLE, ALLOWED = 1.01, 1.02
ALONE = {"pipelines": 1, "stages": 1, "limit": 6}
"""The keys of the job of one server."""
# As many iterations as nobody waits for; the runs are ended from outside.
ENDLESS = 1_000_000


def start(
    job: Job,
    folder: Path,
    sequence: int,
    protected: bool,
    redundancy: Redundancy | None = None,
    *,
    alone: bool = False,
) -> Contestant:
    """Begin a run.

    Args:
        job: that is trained, unless it is one server's.
        folder: of the run.
        sequence: tokens in a sample.
        protected: whether it survives failures.
        redundancy: how hosts keep its state in memory; None where they do not.
        alone: whether it is one server with a larger state, so that it leaves a core to others.
    """
    receiver, done = Pipe(duplex=False)
    process = os.fork()
    if not process:
        # Ctrl-C is not for it.
        os.setsid()
        _train(load_job(PAPER, ALONE) if alone else job, folder, sequence, protected, redundancy, alone, done)
        os._exit(1)  # it does not come to its end
    done.close()
    return Contestant(process, receiver.recv_bytes)


def _train(
    job: Job,
    folder: Path,
    sequence: int,
    protected: bool,
    redundancy: Redundancy | None,
    alone: bool,
    done: Connection,
) -> None:
    from recycle.megatron.gpt.model import ModelOptions
    from recycle.megatron.gpt.run import Run
    from recycle.megatron.gpt.training import train

    plan = plan_maker(job, Mode())(())
    told: dict[int, int] = {}

    def watch(line: Line) -> None:
        if isinstance(line, IterationLine):
            told[line.step] = told.get(line.step, 0) + 1
            if told[line.step] == len(plan.programs):
                del told[line.step]
                done.send_bytes(b"")

    options = ModelOptions(dropout=0.1, sequence=sequence)
    if alone:
        options = ModelOptions(layers=2, hidden=512, heads=8, dropout=0.1, sequence=sequence)
    run = Run(plan, options, ENDLESS, folder, protected=protected, redundancy=redundancy)
    train(run, watch, plan_maker(job, plan.mode), Faults())


def measure(job: Job, sequence: int, pairs: int, seconds: float) -> list[float]:
    """Print what a protected iteration takes and what the same one without, in one start of both; gives the ratios."""
    contestants: list[Contestant] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for protected in (False, True):
                contestants.append(start(job, Path(folder) / str(protected), sequence, protected))
            turns = take_turns(contestants[0], contestants[1], pairs, seconds)
            report(("unprotected", "protected"), turns)
            return [ours.clock / stock.clock for stock, ours in turns]
        finally:
            for each in contestants:
                each.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=several, default=12, help="of turns, in each start")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--sequence", type=int, nargs="+", default=[64, 256], help="tokens in a sample; four samples")
    add_shape(parser)
    arguments = parser.parse_args()
    quiet()
    job = paper_shaped(arguments.shape)
    missed = False
    for sequence in arguments.sequence:
        print(
            f"{4 * sequence} tokens in a micro-batch, {arguments.starts} starts, {arguments.pairs} pairs of turns each:"
        )
        starts = [measure(job, sequence, arguments.pairs, arguments.seconds) for _ in range(arguments.starts)]
        low, middle, high = interval(starts)
        print(f"by the clock {middle:.3f}, with 95% between {low:.3f} and {high:.3f}")
        missed |= middle > ALLOWED_MIDDLE or high > ALLOWED
    print(f"load {os.getloadavg()[0]:.1f}; {ALLOWED_MIDDLE} is allowed, and {ALLOWED} at the interval's end")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
