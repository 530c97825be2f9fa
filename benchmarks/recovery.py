"""How long training stands still after kill -9: the real model, kills before random instructions.

Usage: python -m benchmarks.recovery [--kills 30] [--seed 0] [--shape 3x4] [--keep FOLDER]

Every kill is followed by a rejoin, so that each meets a view of all servers, 12 if nothing is said, or of one less. The
time is counted from right before the signal, which comes right after the victim's last instruction, to the first
instruction of the iteration that is made again; the last column says when every survivor was ready.
"""

import argparse
import math
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.shapes import add_shape, paper_shaped
from recycle.cli.model import quiet
from recycle.faults.fired import load_fired
from recycle.faults.menu import Fault, Faults, Kind
from recycle.faults.pattern import InstructionPattern
from recycle.job import Job
from recycle.plan.instruction import Op
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan
from recycle.record.history import History
from recycle.record.reading import load_lines
from recycle.record.recording import Line, RecoveryLine

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    add_shape(parser)
    parser.add_argument("--keep", type=Path, help="an empty folder for the run, which is kept")
    arguments = parser.parse_args()
    quiet()
    from recycle.megatron.gpt.model import ModelOptions
    from recycle.megatron.gpt.run import Run
    from recycle.megatron.gpt.training import train
    from recycle.planner.source import plan_maker

    job = paper_shaped(arguments.shape)
    plan = plan_maker(job, Mode())(())
    faults = choose_faults(job, plan, arguments.kills, arguments.seed)
    steps = FIRST + APART * arguments.kills + 2
    last = {"step": -1}

    def watch(line: Line) -> None:
        step = getattr(line, "step", -1)
        if step > last["step"]:
            last["step"] = step
            if sys.stderr.isatty():
                print(f"\riteration {step + 1} of {steps}", end="", file=sys.stderr)

    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary) / "run"
        train(Run(plan, ModelOptions(dropout=0.1), steps, folder), watch, plan_maker(job, plan.mode), faults)
        kills = measure(folder)
    print(f"\n{len(kills)} kills of {arguments.kills} survived, load {os.getloadavg()[0]:.1f}; milliseconds")
    print("detect  agree rebuild restore  start | first instruction, all ready")
    for kill in kills:
        print(" ".join(f"{phase:7.1f}" for phase in kill.phases), f"| {kill.first:7.1f} {kill.ready:7.1f}  {kill.text}")
    firsts = [kill.first for kill in kills]
    median, worst = statistics.median(firsts), max(firsts)
    print(f"first instruction of the redo: median {median:.0f} ms, worst {worst:.0f} ms; allowed 150 and 600")
    print(f"all survivors ready: median {statistics.median(k.ready for k in kills):.0f} ms")
    return int(len(kills) < arguments.kills or median > ALLOWED_MEDIAN or worst > ALLOWED_WORST)


if __name__ == "__main__":
    sys.exit(main())
