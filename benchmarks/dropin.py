"""Iteration time of a user's script with the flag against without, in pairs.

Usage: PYTHONPATH=.megatron-0.17.1 python -m benchmarks.dropin [--pairs 30]

One run of megatron.training makes its iterations in turns by the flag's schedule and by its own, so that whatever else
the machine does meets both alike. An iteration is all of Megatron's ``train_step``: data, schedule, norm, clipping and
optimizer. A machine on which the stock schedule's own times differ too much gets no figure.
"""

import argparse
import os
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.pairs import judge

ALLOWED = 1.03
WARM_UP = 3
SCRIPT = Path(__file__).parents[1] / "tests" / "megatron" / "scripts" / "pretrain_small_gpt.py"
SIZE = (
    "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 "
    "--micro-batch-size 2 --global-batch-size 16 --pipeline-model-parallel-size 2 --lr 1e-3 --eval-iters 0 "
    "--eval-interval 1000 --log-interval 1000 --pipeline-schedule recycle"
)


class Turns:
    """Megatron's ``train_step`` with one schedule after the other, timed on all ranks together."""

    def __init__(self, train_step: Any, stock: Any, report: Path) -> None:
        self._train_step = train_step
        self._stock = stock
        self._report = report
        self._times: list[list[float]] = [[], []]
        self._turn = 0

    def __call__(self, *arguments: Any, iteration: int | None = None) -> Any:
        """Make an iteration by one schedule, and the next one by the other."""
        import torch.distributed as dist

        # Either goes first in every other pair.
        which = (self._turn + self._turn // 2) % 2
        self._turn += 1
        *others, flagged = arguments
        dist.barrier()
        start = time.perf_counter()
        result = self._train_step(*others, flagged if which else self._stock, iteration=iteration)
        dist.barrier()
        self._times[which].append(time.perf_counter() - start)
        if dist.get_rank() == 0:
            self._report.write_bytes(msgspec.json.encode([series[WARM_UP:] for series in self._times]))
        return result


def work(report: Path, arguments: list[str]) -> None:
    from recycle.megatron.cpu_training import train_on_cpu

    train_on_cpu()
    from megatron.core.pipeline_parallel import schedules
    from megatron.training import training

    from recycle.megatron.dropin import switch_on
    from recycle.megatron.patching import replace

    switch_on()
    stock = schedules.forward_backward_pipelining_without_interleaving
    replace(training, "train_step", _checked(Turns(training.train_step, stock, report), training.train_step))
    sys.argv = [str(SCRIPT), *arguments]
    runpy.run_path(str(SCRIPT), run_name="__main__")


def _checked(turns: Turns, original: Any) -> Any:
    """With the signature that the table of releases expects."""
    from functools import wraps

    @wraps(original)
    def train_step(*arguments: Any, **keywords: Any) -> Any:
        return turns(*arguments, **keywords)

    return train_step


def measure(pairs: int) -> list[list[float]]:
    from tests.megatron.dropin_runs import ON_CPU, make_dataset
    from tests.megatron.dropin_runs import SIZE as FURTHER

    with tempfile.TemporaryDirectory() as folder:
        dataset = make_dataset(Path(folder) / "text")
        report = Path(folder) / "times.json"
        # Where both say something, the later one counts.
        words = [*FURTHER.split(), *ON_CPU.split(), *SIZE.split(), "--data-path", str(dataset)]
        command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "4", "-m", "benchmarks.dropin", "--report", str(report)]
        done = subprocess.run(
            [*command, *words, "--train-iters", str(2 * (pairs + WARM_UP))],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        return msgspec.json.decode(report.read_bytes(), type=list[list[float]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    if options.report:
        work(options.report, rest)
        return 0
    stock, flagged = measure(options.pairs)
    return judge("PP 2 x DP 2, 4 layers of 256", ("stock", "flag"), (stock, flagged), ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
