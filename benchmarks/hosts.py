"""A host that dies or is cut off: three hosts made of namespaces, 12 servers, ``recycle train`` by torchrun on each.

Usage: python -m benchmarks.hosts [--trials 15] [--how crash cut] [--iterations 60] [--loops 0] [--exact]

Each host has one pipeline of four stages. In each trial, a run of its own, a host other than the store's is killed at
one moment, or its cable is pulled and put back once the others go on. It takes root, and tools that make namespaces.

A trial is good if the others make the first instruction of the redo within the silence and a second, lose no iteration,
have the losses of an undisturbed run (to the bit with --exact), and end with status 0 within ten seconds; and if
nothing was written on the other side after the cut.
"""

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.false_deaths import busy
from benchmarks.interrupted import until_interrupted
from harness.hosts import Host, hosts, missing
from harness.started import TRAIN, Started, losses, torchrun, wait_until
from recycle.control.durations import Durations
from recycle.record.reading import load_lines
from recycle.record.recording import IterationLine, RecoveryLine

PIPELINES, STAGES = 3, 4
ALLOWED = Durations().silence + 1
SOON = 10.0
FAR = 1e-5
MODEL = "layers = 4\nhidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\nlearning_rate = 0.01\n"
MICROSECONDS = 1e6


class Trial(NamedTuple):
    """What came of a host's loss.

    Attributes:
        first: seconds until the first instruction of the redo.
        ended: seconds from the end of training until the last survivor's launcher was gone.
        problem: what is wrong; empty if nothing.
    """

    first: float
    ended: float
    problem: str


def words(
    folder: Path, iterations: int, shape: tuple[int, ...] = (PIPELINES, STAGES), *, exact: bool = False
) -> list[str]:
    """The command line of a run."""
    folder.mkdir(exist_ok=True)
    (folder / "model.toml").write_text(MODEL)
    pipelines, stages = map(str, shape)
    size = ["--pipelines", pipelines, "--stages", stages, "--micro-batches", "4"]
    files = ["--model", str(folder / "model.toml"), "-o", str(folder / "run")]
    return ["train", *size, "--iterations", str(iterations), *files, *["--exact"] * exact]


def lose_host(
    made: Sequence[Host],
    victim: int,
    how: str,
    folder: Path,
    iterations: int,
    expected: Mapping[int, list[float]],
    *,
    exact: bool,
) -> Trial:
    """One run, in which a host is lost."""
    arguments = words(folder, iterations, exact=exact)
    nodes = [
        Started(torchrun(number, len(made), STAGES, made[0], *arguments), host) for number, host in enumerate(made)
    ]
    survivors = [node for number, node in enumerate(nodes) if number != victim]
    try:
        nodes[0].wait_for("iteration 5/", 240)
        moment = time.monotonic()
        if how == "crash":
            made[victim].crash()
        else:
            made[victim].pull_plug()
            left = (PIPELINES - 1) * STAGES
            nodes[0].wait_for(f"view 1: {left} of {PIPELINES * STAGES} servers", 60)
            made[victim].push_plug()
        nodes[0].wait_for(f"iteration {iterations}/{iterations}", 240)
        done = time.monotonic()
        wait_until(lambda: all(node.process.poll() is not None for node in survivors), 60)
        ended = time.monotonic() - done
        statuses = [node.process.returncode for node in survivors]
        return judge(folder / "run", moment, ended, statuses, f"W{victim}_", expected, 0.0 if exact else FAR)
    finally:
        for node in nodes:
            node.kill()


def judge(
    folder: Path,
    moment: float,
    ended: float,
    statuses: Sequence[int],
    lost: str,
    expected: Mapping[int, list[float]],
    far: float,
) -> Trial:
    """What a run left, and whether that is as it should be."""
    begun, written = [], 0
    for line in load_lines(folder):
        if isinstance(line, RecoveryLine) and line.resumed > moment * MICROSECONDS:
            begun.append(line.resumed / MICROSECONDS - moment)
        written += isinstance(line, IterationLine) and line.server.startswith(lost) and line.epoch > 0
    first, found = min(begun, default=float("inf")), losses(folder)
    apart = max(
        (
            abs(one - other) / abs(other)
            for step in found.keys() & expected.keys()
            for one, other in zip(found[step], expected[step], strict=True)
        ),
        default=0.0,
    )
    problems = {
        f"the redo began after {first:.1f} s": first > ALLOWED,
        f"exit status {', '.join(map(str, statuses))}": any(statuses),
        f"the end took {ended:.1f} s": ended > SOON,
        "iterations are missing": list(found) != list(expected),
        f"losses are up to {apart:.1e} apart": apart > far,
        f"{written} iterations were made on the other side": written > 0,
    }
    return Trial(first, ended, "; ".join(text for text, holds in problems.items() if holds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=15, help="of each kind")
    parser.add_argument("--how", nargs="+", choices=["crash", "cut"], default=["crash", "cut"])
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--loops", type=int, default=0, help="how many other processes keep the machine busy")
    parser.add_argument("--exact", action="store_true", help="sum exactly, and expect equal losses to the bit")
    arguments = parser.parse_args()
    if why_not := missing():
        print(why_not, file=sys.stderr)
        return 2
    trials: dict[str, list[Trial]] = {how: [] for how in arguments.how}
    with until_interrupted(), tempfile.TemporaryDirectory() as temporary, busy(arguments.loops):
        undisturbed = Path(temporary) / "undisturbed"
        print("a run that nothing befalls", file=sys.stderr, flush=True)
        run = Started([*TRAIN, *words(undisturbed, arguments.iterations, exact=arguments.exact)])
        assert run.ended(600) == 0, run.output
        expected = losses(undisturbed / "run")
        for number, how in itertools.product(range(arguments.trials), arguments.how):
            folder = Path(temporary) / f"{how}-{number}"
            with hosts(PIPELINES) as made:
                victim = 1 + number % 2
                trial = lose_host(made, victim, how, folder, arguments.iterations, expected, exact=arguments.exact)
            trials[how].append(trial)
            text = f"{how} {number + 1} of {arguments.trials}: {trial.first:.2f} s, {trial.problem or 'good'}"
            print(text, file=sys.stderr, flush=True)
    print("how   | good      | first instruction of the redo: median, worst | end: worst")
    for how, found in trials.items():
        if not found:
            continue
        firsts = [each.first for each in found]
        good = f"{sum(not each.problem for each in found)} of {len(found)}"
        middle, worst = statistics.median(firsts), max(firsts)
        print(f"{how:5} | {good:9} | {middle:6.2f} s {worst:6.2f} s | {max(each.ended for each in found):6.2f} s")
    print(f"load {os.getloadavg()[0]:.1f}; {ALLOWED:g} s are allowed")
    return int(any(each.problem for found in trials.values() for each in found))


if __name__ == "__main__":
    sys.exit(main())
