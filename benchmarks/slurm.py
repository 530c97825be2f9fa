"""Runs of ``recycle train`` that a real Slurm starts on nodes of namespaces: what survives, and with which status.

Usage: python -m benchmarks.slurm [--trials 3] [--iterations 60] [--how nothing cancel crash] [--tasks 4]

As root, with Debian's slurm-wlm. Three nodes with four servers each, a pipeline to a node, are started by the commands
of docs/reference/cluster.md. In turns, nothing happens, the whole job is cancelled and goes on from its checkpoint, and
a node that is not the first crashes with its slurmd. Losses are compared with those of a run without Slurm.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.slurm import Cluster, cluster, missing
from harness.started import TRAIN, Started, losses

MODEL = "layers = 4\nhidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\nlearning_rate = 0.001\n"
LAUNCH = ("srun", "--nodes=3", "--no-kill", "--kill-on-bad-exit=0")


PATIENCE = 300.0
"""Seconds for what takes longest on a busy machine: twelve processes that import PyTorch and Megatron."""


def words(folder: Path, iterations: int, stages: int) -> list[str]:
    folder.mkdir()
    (folder / "model.toml").write_text(MODEL)
    size = ["--pipelines", "3", "--stages", str(stages), "--micro-batches", "4", "--iterations", str(iterations)]
    output = str(folder / "run")
    return [*TRAIN, "train", *size, "--model", str(folder / "model.toml"), "-o", output, "--resume-from", output]


def furthest(found: dict[int, list[float]], expected: dict[int, list[float]]) -> float:
    """How far losses are apart, relative to what they should be, at worst."""
    return max(
        abs(one - other) / abs(other)
        for step, theirs in expected.items()
        for one, other in zip(found[step], theirs, strict=True)
    )


def start(made: Cluster, arguments: list[str]) -> Started:
    tasks, iterations = (arguments[arguments.index(name) + 1] for name in ("--stages", "--iterations"))
    # Whoever asks Slurm for nodes waits until those of the last job are free.
    begun = time.monotonic()
    run = Started([*LAUNCH, f"--ntasks-per-node={tasks}", *arguments], made.controller, made.variables)
    run.wait_for(f"/{iterations}", PATIENCE)
    print(f"trains {time.monotonic() - begun:.0f} s after srun", file=sys.stderr, flush=True)
    return run


def crash(made: Cluster, arguments: list[str], source: random.Random) -> tuple[int, str]:
    """A node goes down in the middle of training; what is printed, and srun's status."""
    run = start(made, arguments)
    run.wait_for("iteration 5/")
    time.sleep(source.random())
    made.nodes[2].crash()
    return run.ended(PATIENCE), run.output


def cancel(made: Cluster, arguments: list[str], source: random.Random) -> tuple[int, str]:
    """The job is cancelled, and started again."""
    run = start(made, arguments)
    run.wait_for("iteration 5/")
    time.sleep(source.random())
    job = made.ask("squeue", "-h", "-o", "%i").split()[-1]
    made.ask("scancel", job)
    run.ended(PATIENCE)
    assert "with a checkpoint" in run.output, run.output
    again = start(made, arguments)
    return again.ended(PATIENCE), again.output


def undisturbed(made: Cluster, arguments: list[str], _: random.Random) -> tuple[int, str]:
    """Nothing happens."""
    run = start(made, arguments)
    return run.ended(PATIENCE), run.output


KINDS = {
    "nothing": ("nothing", undisturbed),
    "cancel": ("scancel, and again", cancel),
    "crash": ("a node crashes", crash),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=3, help="of each kind")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--how", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--tasks", type=int, default=4, help="servers on each node, and stages of the job")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if why := missing():
        print(why, file=sys.stderr)
        return 2
    source = random.Random(arguments.seed)
    print("| what happens | to its end | srun's status | losses differ by at most | leftovers |")
    print("| --- | --- | --- | --- | --- |")
    wrong = False
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        alone = Started(words(folder / "alone", arguments.iterations, arguments.tasks))
        assert alone.ended(PATIENCE) == 0, alone.output
        expected = losses(folder / "alone" / "run")
        for number in range(arguments.trials):
            for kind, run in map(KINDS.__getitem__, arguments.how):
                # A node that has crashed is gone, so each trial has a cluster of its own.
                place = folder / f"{number}-{kind.split()[0].strip(',')}-{len(kind)}"
                place.mkdir()
                with cluster(3, place / "slurm") as made:
                    status, output = run(made, words(place / "job", arguments.iterations, arguments.tasks), source)
                    ended = f"iteration {arguments.iterations}/{arguments.iterations}" in output
                    left = leftovers(made)
                found = losses(place / "job" / "run")
                apart = furthest(found, expected) if found.keys() == expected.keys() else float("inf")
                wrong |= not ended or apart > 1e-5
                print(f"| {kind} | {'yes' if ended else 'no'} | {_named(status)} | {apart:.1e} | {left} |", flush=True)
                if not ended:
                    print(output[-3000:], file=sys.stderr)
    return int(wrong)


def _named(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else str(status)


def leftovers(made: Cluster) -> int:
    """Processes of the run that are left on nodes that live."""
    count = 0
    for host in made.nodes:
        shown = subprocess.run(host.command("ps", "ax", "-o", "args="), capture_output=True, text=True, check=False)
        count += sum(line.startswith("recycle:") for line in shown.stdout.splitlines())
    return count


if __name__ == "__main__":
    sys.exit(main())
