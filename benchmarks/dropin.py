"""Iteration time of a user's script with the flag against without, in runs that take turns.

Usage: PYTHONPATH=.megatron-0.17.1 python -m benchmarks.dropin [--turns 5] [--iterations 30]

An iteration is what Megatron's own log says of it: data, schedule, norm, clipping, optimizer and reports; with the
flag, agents, heartbeats and groups that outlive members are a part of it. Of a run the first iterations are left out,
and its median counts. A machine on which the stock runs differ too much gets no figure.
"""

import argparse
import re
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.pairs import judge

ALLOWED = 1.03
WARM_UP = 5
SIZE = (
    "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 "
    "--micro-batch-size 2 --global-batch-size 16 --lr 1e-3 --eval-iters 0 --eval-interval 1000"
)
FLAG = ("--pipeline-schedule", "recycle")
ELAPSED = re.compile(r"elapsed time per iteration \(ms\): (\S+)")


def measure(dataset: Path, iterations: int, *flags: str) -> float:
    """The median length of an iteration of one run, in seconds."""
    from tests.megatron.dropin_runs import train

    # Where both say something, the later words count.
    found = ELAPSED.findall(train(dataset, *SIZE.split(), *flags, iterations=iterations).output)
    return statistics.median(map(float, found[WARM_UP:])) / 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=30)
    arguments = parser.parse_args()
    from tests.megatron.dropin_runs import make_dataset

    stock, flagged = [], []
    with tempfile.TemporaryDirectory() as folder:
        dataset = make_dataset(Path(folder) / "text")
        for _ in range(arguments.turns):
            stock.append(measure(dataset, arguments.iterations))
            flagged.append(measure(dataset, arguments.iterations, *FLAG))
            print(f"stock {stock[-1] * 1e3:7.1f} ms, flag {flagged[-1] * 1e3:7.1f} ms", flush=True)
    return judge("PP 2 x DP 2, 4 layers of 256", ("stock", "flag"), (stock, flagged), ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
