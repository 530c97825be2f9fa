"""Iteration time of a user's script with the flag against without, all servers alive.

Usage: PYTHONPATH=.megatron-0.17.1 python -m benchmarks.dropin [--starts 5] [--pairs 8] [--seconds 2]
           [--tensor-parallel 2] [--experts]

Two jobs of torchrun's, one with the flag and one without, take turns (``benchmarks.shared``). Two equal jobs differ by
some percent for as long as they live, so jobs are started several times. None of them gives memory back: how much a
process does, and gets again in every iteration, depends on where its heap happens to end, and costs up to 5%.

An iteration is all that is done between two lines of Megatron's log: data, schedule, norm, clipping, optimizer and
reports; with the flag, agents, heartbeats and groups that outlive members are a part of it.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.shared import Contestant, Length, add_starts, race, report

ALLOWED = 1.03
# As many iterations as nobody waits for; the jobs are ended from outside.
ENDLESS = 10_000
SIZE = (
    "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 "
    "--lr 1e-3 --eval-iters 0 --eval-interval 10000"
)
SAMPLES = 2
"""In a micro-batch, for each rank of a server that divides its tensors: so a rank computes as much in every job."""
EXPERTS = (
    "--num-experts 4 --expert-model-parallel-size 2 --moe-router-topk 2 --moe-token-dispatcher-type alltoall "
    "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2"
)
KEPT_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
NAMES = ("stock", "flag")
FLAG = ("--pipeline-schedule", "recycle")
ELAPSED = re.compile(r"elapsed time per iteration \(ms\): (\S+)")


def line_reader(job: "subprocess.Popen[str]") -> Callable[[], None]:
    """What waits for the next iteration of a job."""
    printed: list[str] = []
    assert job.stdout is not None
    lines = iter(job.stdout)

    def wait() -> None:
        for line in lines:
            printed.append(line)
            if ELAPSED.search(line):
                return
        sys.exit(f"a job has ended:\n{''.join(printed[-40:])}")

    return wait


def measure(
    dataset: Path, size: Sequence[str], ranks: int, flags: Sequence[str], pairs: int, seconds: float
) -> list[tuple[Length, Length]]:
    """Start two jobs of a size, one with some flags and one without, and let them take turns."""
    from harness.flag_runs import launch

    def start(words: Sequence[str]) -> Contestant:
        # Where both say something, the later words count.
        job = launch(dataset, *size, *words, ranks=ranks, iterations=ENDLESS)
        return Contestant(job.pid, line_reader(job))

    return race([partial(start, ()), partial(start, flags)], NAMES, pairs, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_starts(parser)
    parser.set_defaults(starts=5, pairs=8)
    parser.add_argument("--tensor-parallel", type=int, default=1, metavar="N", help="ranks of a server")
    parser.add_argument("--experts", action="store_true", help="experts, divided over the ranks of a server of two")
    parser.add_argument("flags", nargs="*", help="further arguments of the job with the flag, after --")
    arguments = parser.parse_args()
    from harness.flag_runs import make_dataset, missing

    if missing:
        print(f"{', '.join(missing)} are not installed: scripts/develop does, in .megatron-0.17.1", file=sys.stderr)
        return 2
    os.environ.update(KEPT_MEMORY)
    pairs: list[tuple[Length, Length]] = []
    ranks = 4 * arguments.tensor_parallel * (2 if arguments.experts else 1)
    samples = SAMPLES * arguments.tensor_parallel
    size = [*SIZE.split(), "--tensor-model-parallel-size", str(arguments.tensor_parallel)]
    size += f"--micro-batch-size {samples} --global-batch-size {8 * samples}".split()
    size += EXPERTS.split() if arguments.experts else []
    with tempfile.TemporaryDirectory() as folder:
        dataset = make_dataset(Path(folder) / "text")
        for start in range(arguments.starts):
            print(f"start {start + 1} of {arguments.starts}")
            pairs += measure(dataset, size, ranks, (*FLAG, *arguments.flags), arguments.pairs, arguments.seconds)
    size_text = f"PP 2 x DP 2, {ranks // 4} ranks a server, 4 layers of 256"
    print(f"{size_text}, {len(pairs)} pairs, load {os.getloadavg()[0]:.1f}; {ALLOWED} is allowed")
    return int(report(NAMES, pairs).clock > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
