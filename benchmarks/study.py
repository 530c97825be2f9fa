"""What studies simulate, beside what was emulated and trained.

Usage: python -m benchmarks.study fidelity [-D 2 -P 1 -M 8] [--kills 10] [--apart 16] [--faults FILE] [-o PICTURE]

``fidelity``: one file of failures and repairs through a real run, emulated servers and the simulator.
The real run is ``recycle train``. A run of the same job before it, without failures, is the profile: the medians of its
instructions are the costs that its plans are made for, that the emulated servers sleep, and that the simulator plans
with. Servers that share processors have no costs of their own, so there must be a core for each.

The simulator is told what it does not model: when servers were dead in the run that it is compared with, because a
replacement's process takes its time to start; how long an iteration takes there on average while all are alive; and the
median pause. What it says by itself is the throughput of each set of live servers, and what is lost and made again. It
has periods below that of 1F1B, because the servers run such plans.
"""

import argparse
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.shared import run_part
from harness.emulated_training import MICROSECONDS, launch_emulated
from harness.job_files import encode_job
from recycle.cli.run.model import quiet
from recycle.faults.file import load_faults
from recycle.faults.outages import NodeOutage, Outages
from recycle.job import Job, Server, Stage
from recycle.jobfile import load_job
from recycle.plan.instruction import Instruction, Op
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan
from recycle.planner.source import plan_maker
from recycle.record.history import history_of
from recycle.record.reading import load_lines
from recycle.record.recording import SpanLine, ViewLine
from recycle.study.buckets import Outcome
from recycle.study.constants import TYPICAL
from recycle.study.policies.rerouting import Rerouting
from recycle.study.rates import Ground, Rates
from recycle.study.simulator import simulate

RECYCLE = (sys.executable, "-c", "from recycle.cli import main; main()")
PROFILED = 24
"""Iterations of the profile; those of its first third are not counted."""


class Lived(NamedTuple):
    """What came of a run.

    Attributes:
        name: what it was.
        ends: when each iteration ended that is left, in seconds from the end of the first one.
        outages: who was in no view meanwhile, and when.
        whole: seconds of an iteration while all are alive, on average.
        pause: seconds of a recovery, the median.
    """

    name: str
    ends: tuple[float, ...]
    outages: Outages
    whole: float
    pause: float

    @property
    def rate(self) -> float:
        """Iterations per second."""
        return (len(self.ends) - 1) / self.ends[-1]


def measured_job(job: Job, folder: Path) -> Job:
    """The job with the costs that a run of it had, in microseconds."""
    times: dict[tuple[int, Op], list[float]] = defaultdict(list)
    for line in load_lines(folder):
        if isinstance(line, SpanLine) and line.iteration >= PROFILED // 3:
            instruction = Instruction.parse(line.instruction)
            times[instruction.stage, instruction.op].append(line.end - line.start)
    medians = {key: statistics.median(found) for key, found in times.items()}

    def costs(number: int, stage: Stage) -> Stage:
        def cost(op: Op, otherwise: float = 0.0) -> int:
            return round(medians.get((number, op), otherwise))

        half = medians.get((number, Op.B), 0.0) / 2
        return msgspec.structs.replace(
            stage,
            forward=cost(Op.F),
            input_gradient=cost(Op.I, half),
            weight_gradient=cost(Op.W, half),
            optimizer=cost(Op.STEP),
            # A reduction begins when the first of its peers does, and waits for the last.
            reduction=round(min(times[number, Op.REDUCE], default=0.0)),
        )

    stages = tuple(costs(number, stage) for number, stage in enumerate(job.stages))
    return msgspec.structs.replace(job, stages=stages, time_unit="us")


def write_faults(job: Job, kills: int, apart: int, path: Path) -> None:
    """A file of kills at equal distances, of servers at random, each of which is replaced.

    Args:
        job: whose servers die.
        kills: how many.
        apart: iterations between two of them. Seconds would miss a run that is quicker than its profile.
        path: of the file.
    """
    source, text = random.Random(0), ""
    lives: Counter[Server] = Counter()
    for step in range(apart, kills * apart + 1, apart):
        server = source.choice(job.servers())
        text += (
            f'[[fault]]\nkind = "kill"\nserver = "{server}"\niteration = {step + 1}\nincarnation = {lives[server]}\n\n'
        )
        text += f'[[fault]]\nkind = "join"\nserver = "{server}"\niteration = {step + apart // 3 + 1}\n\n'
        lives[server] += 1
    path.write_text(text)


def train(job: Path, iterations: int, folder: Path, *options: str | Path) -> None:
    """A real run."""
    words = ["train", job, "--iterations", str(iterations), "-o", folder, *options]
    subprocess.run([*RECYCLE, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def read(name: str, job: Job, folder: Path) -> Lived:
    """What came of the run in a folder."""
    ends: dict[int, float] = {}
    views: dict[int, ViewLine] = {}
    for line in load_lines(folder):
        if isinstance(line, SpanLine):
            ends[line.iteration] = max(ends.get(line.iteration, 0.0), line.end / MICROSECONDS)
        elif isinstance(line, ViewLine):
            views[line.epoch] = line
    start, times = min(ends.values()), sorted(ends.values())
    outages = dead_times(name, job, [view for _, view in sorted(views.items())], start, times[-1])
    relative = tuple(each - start for each in times)
    whole = [
        later - earlier
        for earlier, later in pairwise(relative)
        if not any(entry.start < later and earlier < entry.end for entry in outages.entries)
    ]
    recoveries = [
        change.recovery for change in history_of(load_lines(folder)).changes if change.recovery and change.deaths
    ]
    pause = statistics.median(each.pause for each in recoveries) / MICROSECONDS
    return Lived(name, relative, outages, statistics.fmean(whole), pause)


def dead_times(name: str, job: Job, views: Sequence[ViewLine], start: float, end: float) -> Outages:
    """Who was in no view, and when."""
    since: dict[int, float] = {}
    entries = []
    for view in views:
        at = min(max(view.time / MICROSECONDS, start), end) - start
        live = {server.pipeline * job.depth + server.stage for server in map(Server.parse, view.servers)}
        for place in range(job.pipelines * job.depth):
            if place not in live:
                since.setdefault(place, at)
            elif place in since:
                entries.append(NodeOutage(place, since.pop(place), at))
    entries += [NodeOutage(place, begin, end - start) for place, begin in since.items()]
    entries = sorted((entry for entry in entries if entry.start < entry.end), key=lambda entry: entry.start)
    return Outages(name, job.pipelines * job.depth, end - start, tuple(entries))


def predict(job: Job, lived: Lived) -> tuple[Outcome, float]:
    """What the simulator makes of a run's outages, and the seconds of a fault-free 1F1B iteration there."""
    rates = Rates(job, job.depth, most=math.inf)
    iteration = lived.whole * rates.rerouted((0,) * job.depth)
    ground = Ground(job, iteration, job.depth, lived.outages.failures_per_second)
    policy = Rerouting(ground, rates, msgspec.structs.replace(TYPICAL, recycle_pause=lived.pause))
    return simulate(policy, job.pipelines, job.depth, lived.outages), iteration


def draw(runs: Sequence[tuple[Lived, Outcome, float]], path: Path) -> None:
    """The time lines on one axis: iterations per second of each run, and of its simulation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.9 * len(runs) + 0.4), layout="constrained")
    axes = figure.subplots(len(runs), 1, sharex=True, squeeze=False)
    for axis, (lived, outcome, iteration) in zip(axes.flat, runs, strict=True):
        lived_rates = [1 / (later - earlier) for earlier, later in pairwise(lived.ends)]
        axis.stairs(lived_rates, lived.ends, color="#2f6db5", baseline=None, label=lived.name)
        times = [*(span.start for span in outcome.spans), outcome.seconds]
        axis.stairs(
            [span.rate / iteration for span in outcome.spans], times, color="#c0392b", baseline=None, label="simulated"
        )
        for entry in lived.outages.entries:
            axis.axvspan(entry.start, entry.end, color="#b0b0b0", alpha=0.3, linewidth=0)
        axis.set_ylabel("iterations/s")
        axis.set_ylim(0, 1.6 / lived.whole)
        axis.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    axes.flat[-1].set_xlabel("seconds; grey: a server is dead")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def fidelity() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-D", "--pipelines", type=int, default=2)
    parser.add_argument("-P", "--stages", type=int, default=1)
    parser.add_argument("-M", "--micro-batches", type=int, default=8)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--apart", type=float, default=16.0, help="seconds between kills, as planned")
    parser.add_argument("--faults", type=Path, help="a fault file instead of these kills")
    parser.add_argument("-o", "--output", type=Path, help="a picture of the time lines")
    arguments = parser.parse_args()
    shape = {name: getattr(arguments, name) for name in ("pipelines", "stages", "micro_batches")}
    servers, cores = arguments.pipelines * arguments.stages, len(os.sched_getaffinity(0))
    if servers > cores:
        print(f"{servers} servers share {cores} cores: their costs are not their own; give a smaller job")
        return 2
    quiet()
    hung = threading.Timer(900, os._exit, [3])
    hung.daemon = True
    hung.start()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        job = load_job(Path("schedules/paper.toml"), shape)
        (folder / "shape.toml").write_bytes(encode_job(job))
        train(folder / "shape.toml", PROFILED, folder / "profile")
        job = measured_job(job, folder / "profile")
        (folder / "job.toml").write_bytes(encode_job(job))
        faults = folder / "faults.toml"
        plan = plan_maker(job, Mode())(())
        apart = max(3, round(arguments.apart / job_seconds(plan)))
        if arguments.faults is None:
            write_faults(job, arguments.kills, apart, faults)
        else:
            shutil.copy(arguments.faults, faults)
        entries = load_faults(faults, job, sys.maxsize).entries
        iterations = apart // 2 + max(each.step or math.ceil((each.at or 0.0) / job_seconds(plan)) for each in entries)
        train(folder / "job.toml", iterations, folder / "real", "--faults", faults)
        launch_emulated(
            plan, folder / "emulated", 1 / MICROSECONDS, iterations, lambda _: None,
            faults=load_faults(faults, job, iterations),
        )  # fmt: skip
        runs = [read(name, job, folder / name) for name in ("real", "emulated")]
    print(f"{servers} servers, {iterations} iterations, load {os.getloadavg()[0]:.1f}")
    print(f"planned for the profile's costs: an iteration of {job_seconds(plan):.3f} s")
    drawn = []
    for lived in runs:
        outcome, iteration = predict(job, lived)
        simulated = outcome.progress / iteration / outcome.seconds
        drawn.append((lived, outcome, iteration))
        print(
            f"{lived.name:<9} {lived.rate:.4f} iterations/s with {len(lived.outages.entries)} outages in "
            f"{lived.outages.seconds:.0f} s, {lived.whole:.3f} s while all are alive, "
            f"pauses of {lived.pause * 1e3:.0f} ms; simulated {simulated:.4f}, {simulated / lived.rate - 1:+.1%}"
        )
    if arguments.output is not None:
        draw(drawn, arguments.output)
    return 0


def job_seconds(plan: Plan) -> float:
    """Seconds of a planned iteration."""
    return plan.period / MICROSECONDS


if __name__ == "__main__":
    sys.exit(run_part(__doc__, {"fidelity": fidelity}))
