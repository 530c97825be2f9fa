"""How long training stands still after kill -9, from right before the signal to the first instruction of the redo.

Usage: python -m benchmarks.recovery real [--kills 30] [--seed 0] [--shape 3x4] [--keep FOLDER]
       python -m benchmarks.recovery emulated [--shapes 3x4 3x8 4x8 3x16] [--kills 20] [--seed 0]
       python -m benchmarks.recovery accounts [--runs 10] [--kills 2] [--iterations 60] [--slot-ms 20] [--seed 0]

``real``: the real model, kills right after random instructions of the victim. Every kill is followed by a rejoin, so
that each meets a view of all servers, 12 if nothing is said, or of one less; the last column says when every survivor
was ready.

``emulated``: more and more servers that sleep their durations, killed at random moments; a shape is pipelines x stages.
A server that was killed is started again by its launcher and joins by itself, so one run serves for many kills. Every
message, group, signal and store access is real.

``accounts``: is what a run says that its failures and returns cost what they cost? Runs of 3 x 2 emulated servers with
kills at random moments, each against a run without: how far is the difference from the sum that is printed?
"""

import argparse
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.shared import add_shape, paper_shaped, run_part, sizes
from harness.emulated_training import MICROSECONDS, EmulatedRun, Recovered
from recycle.cli.run.model import quiet
from recycle.faults.fired import load_fired
from recycle.faults.menu import Fault, Faults, Kind
from recycle.faults.pattern import InstructionPattern
from recycle.job import Job
from recycle.plan.instruction import Op
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan
from recycle.planner.source import plan_maker
from recycle.record.history import History, history_of
from recycle.record.reading import load_lines
from recycle.record.recording import IterationLine, RecoveryLine, SpanLine

ALLOWED_MEDIAN, ALLOWED_WORST = 150.0, 600.0
FIRST, APART = 3, 12
MILLISECOND = 1000.0


class Kill(NamedTuple):
    """A kill that was survived; times in milliseconds after the signal.

    Attributes:
        text: of the fault.
        phases: detect, agree, rebuild, restore, start.
        first: the first instruction of the redo.
        ready: every survivor is ready for its own.
    """

    text: str
    phases: tuple[float, ...]
    first: float
    ready: float


def choose_faults(job: Job, plan: Plan, kills: int, seed: int) -> Faults:
    """Kills before instructions of every kind in turn, at random places, and a rejoin after each."""
    source = random.Random(seed)
    lives = dict.fromkeys(job.servers(), 0)
    kinds = [Op.F, Op.I, Op.W, Op.REDUCE, Op.STEP, Op.SEND_F, Op.SEND_B, Op.RECV_F, Op.RECV_B]
    faults = []
    for number in range(kills):
        kind = kinds[number % len(kinds)]
        able = [server for server, program in plan.programs.items() if any(each.op is kind for each in program)]
        server = source.choice(able)
        chosen = source.choice([each for each in plan.programs[server] if each.op is kind])
        # The start of its text that is sure to be there whatever the view's plan is.
        pattern = InstructionPattern.parse(f"{server.stage}{chosen.op.value}")
        step = FIRST + APART * number
        faults.append(Fault(Kind.KILL, (server,), step=step, instruction=pattern, incarnation=lives[server]))
        faults.append(Fault(Kind.JOIN, (server,), step=step + 1))
        lives[server] += 1
    return Faults(tuple(faults))


def measure(folder: Path) -> list[Kill]:
    """The kills of a run, from what it left."""
    history = History()
    recoveries: dict[int, list[RecoveryLine]] = {}
    for line in load_lines(folder):
        history.add(line)
        if isinstance(line, RecoveryLine):
            recoveries.setdefault(line.epoch, []).append(line)
    fired = [each for each in load_fired(folder / "faults.jsonl") if each.kind == Kind.KILL.value]
    changes = [each for each in history.changes if each.recovery]
    found = []
    for each in fired:
        # Where the first view after the death came to nothing as well, the next one counts.
        heard = (
            death.epoch for death in history.deaths if (death.server, death.incarnation) == (each.by, each.incarnation)
        )
        first = min(heard, default=math.inf)
        change = next((change for change in changes if change.view.epoch >= first), None)
        if change is None or change.recovery is None:
            print(f"no recovery is recorded for: {each.fault}", file=sys.stderr)
            continue
        begin = each.time / 1000
        recovery = change.recovery
        told = recoveries[change.view.epoch]
        phases = (
            max(line.noticed for line in told) - begin,
            recovery.agree,
            recovery.rebuild,
            recovery.restore,
            recovery.start,
        )
        found.append(
            Kill(
                each.fault,
                tuple(phase / MILLISECOND for phase in phases),
                (min(line.resumed for line in told) - begin) / MILLISECOND,
                (max(line.restored for line in told) - begin) / MILLISECOND,
            )
        )
    return found


def real() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    add_shape(parser)
    parser.add_argument("--keep", type=Path, help="an empty folder for the run, which is kept")
    arguments = parser.parse_args()
    quiet()
    from recycle.megatron.gpt.model import ModelOptions
    from recycle.megatron.gpt.run_settings import Run
    from recycle.megatron.gpt.training import train

    job = paper_shaped(arguments.shape)
    plan = plan_maker(job, Mode())(())
    faults = choose_faults(job, plan, arguments.kills, arguments.seed)
    steps = FIRST + APART * arguments.kills + 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary) / "run"
        run = Run(plan, ModelOptions(dropout=0.1), steps, folder)
        train(run, lambda _: None, plan_maker(job, plan.mode), faults)
        kills = measure(folder)
    print(f"{len(kills)} kills of {arguments.kills} survived, load {os.getloadavg()[0]:.1f}; milliseconds")
    print("detect  agree rebuild restore  start | first instruction, all ready")
    for kill in kills:
        print(" ".join(f"{phase:7.1f}" for phase in kill.phases), f"| {kill.first:7.1f} {kill.ready:7.1f}  {kill.text}")
    firsts = [kill.first for kill in kills]
    median, worst = statistics.median(firsts), max(firsts)
    print(f"first instruction of the redo: median {median:.0f} ms, worst {worst:.0f} ms; allowed 150 and 600")
    print(f"all survivors ready: median {statistics.median(k.ready for k in kills):.0f} ms")
    return int(len(kills) < arguments.kills or median > ALLOWED_MEDIAN or worst > ALLOWED_WORST)


MICRO_BATCHES = 6


def kill_emulated(pipelines: int, stages: int, kills: int, seed: int) -> list[Recovered]:
    """Kill servers of a run, one after another."""
    source, found = random.Random(seed), list[Recovered]()
    with (
        tempfile.TemporaryDirectory() as temporary,
        EmulatedRun(pipelines, stages, MICRO_BATCHES, Path(temporary)) as run,
    ):
        for number in range(kills):
            victim = source.choice(run.await_whole(2))
            time.sleep(source.random() / 2)
            try:
                found.append(run.await_recovery({victim}, run.kill(victim)))
            except TimeoutError as error:
                print(f"{victim}: {error}", file=sys.stderr)
                break
            print(
                f"kill {number + 1} of {kills}: {found[-1].first:.3f} s, {run.causes[-1]}", file=sys.stderr, flush=True
            )
    return found


def row(name: str, found: list[Recovered]) -> str:
    """A line of the table."""
    firsts = [each.first * MILLISECOND for each in found]
    phases = (
        statistics.median(getattr(each, phase) * MILLISECOND for each in found)
        for phase in ("heard", "detect", "agree", "rebuild", "restore")
    )
    middles = " ".join(f"{each:7.0f}" for each in phases)
    return f"{name:>7} | {len(found):5} | {statistics.median(firsts):6.0f} {max(firsts):6.0f} | {middles}"


HEADER = "        | kills | median  worst |   heard  detect   agree rebuild restore (medians; all in ms)"


def emulated() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", nargs="+", type=sizes(2), default=[(3, 4), (3, 8), (4, 8), (3, 16)])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    missed = 0
    print(HEADER)
    for pipelines, stages in arguments.shapes:
        found = kill_emulated(pipelines, stages, arguments.kills, arguments.seed)
        missed += arguments.kills - len(found)
        if found:
            print(row(f"{pipelines}x{stages}", found), flush=True)
    print(f"load {os.getloadavg()[0]:.1f}; {missed} kills were not survived in time or not made")
    return int(missed > 0)


ALLOWED_GAP = 0.03
LEAD = 5
"""Iterations before the first kill and after the last one."""


class Account(NamedTuple):
    """How long a run took, and what it said that failures and returns cost of that; in seconds.

    Attributes:
        seconds: from the first instruction to the last one.
        printed: what it said.
        left_out: of what came after the first failure, what is neither that nor iterations of the length before it.
        failures: how many there were.
    """

    seconds: float
    printed: float
    left_out: float
    failures: int


def account(iterations: int, slot: float, kills: Sequence[int], source: random.Random) -> Account:
    """Run to the end, killing a server after each of some iterations."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        EmulatedRun(3, 2, MICRO_BATCHES, Path(temporary), 600.0, slot, iterations) as run,
    ):
        for step in kills:
            live = run.await_iteration(step)
            able = [each for each in live if sum(other.stage == each.stage for other in live) > 1]
            time.sleep(source.random() * slot * MICRO_BATCHES)
            run.kill(source.choice(able))
        run.await_end()
        lines = list(load_lines(Path(temporary)))
        history = history_of(load_lines(Path(temporary)))
    spans = [line for line in lines if isinstance(line, SpanLine)]
    end, printed = max(each.end for each in spans), history.costs.whole / MICROSECONDS
    left_out = 0.0
    if history.changes:
        first = history.changes[0].view.step
        made = [each for each in lines if isinstance(each, IterationLine) and each.step == first - 1]
        usual = history.usual_seconds
        assert usual is not None, "the first failure came too early"
        since = max(each.end or 0.0 for each in made)
        left_out = (end - since) / MICROSECONDS - (iterations - first) * usual - printed
    seconds = (end - min(each.start for each in spans)) / MICROSECONDS
    return Account(seconds, printed, left_out, len(history.deaths))


def accounts() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--kills", type=int, default=2, help="in each run")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--slot-ms", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    source, slot, iterations = random.Random(arguments.seed), arguments.slot_ms / 1000, arguments.iterations
    print("seconds | undisturbed | disturbed | failures | more | printed | left out")
    pairs: list[tuple[float, float, float]] = []
    for _ in range(arguments.runs):
        alone = account(iterations, slot, (), source)
        kills = sorted(source.sample(range(LEAD, max(LEAD + arguments.kills, iterations - LEAD)), arguments.kills))
        found = account(iterations, slot, kills, source)
        more = found.seconds - alone.seconds
        pairs.append((more, found.printed, found.left_out))
        print(
            f"        | {alone.seconds:11.2f} | {found.seconds:9.2f} | {found.failures:8} | {more:4.2f} | "
            f"{found.printed:7.2f} | {found.left_out:.2f}",
            flush=True,
        )
    more, printed, left_out = map(sum, zip(*pairs, strict=True))
    print(
        f"{arguments.runs} runs: failures cost {more:.1f} s, and {printed:.1f} s are printed: "
        f"{printed / more - 1:+.1%}, and {ALLOWED_GAP:.0%} is allowed; against their own iterations before the first "
        f"failure, {left_out:+.2f} s are left out (load {os.getloadavg()[0]:.1f})"
    )
    return int(abs(printed / more - 1) > ALLOWED_GAP)


if __name__ == "__main__":
    sys.exit(run_part(__doc__, {"real": real, "emulated": emulated, "accounts": accounts}))
