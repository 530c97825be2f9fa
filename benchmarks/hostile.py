"""Hostile moments: small runs to which something is done that a user, a disk, a store or a machine does.

Usage: python -m benchmarks.hostile [--moments 60] [--seed S] [--first N] [--kind KIND]

Each moment starts a real ``recycle train`` of 2 pipelines x 2 stages on the CPU with checkpoints. One thing is done to
it, at an iteration that is drawn or before the start; in half of the moments a server is killed after that as well.
Training has to go on to its last iteration with the losses of a run that nothing befell. Where it cannot begin, or
where the documents say that it ends, it has to end with one plain line, and ``--resume`` has to go on. It prints no
traceback, is never silent for more than ten seconds while it trains nothing, and leaves no process behind.

A moment follows from the seed and its number alone: ``--seed S --first N --moments 1`` is one of them again. What is
drawn is the same then; what comes of it depends on a clock. What failed moments printed is in the folder of ``-o``.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.shared import until_interrupted
from harness.hostile_kinds import KINDS
from harness.hostile_runs import ITERATIONS, SERVERS, UGLY, Run, loss_problems, recorded, words_of, write_inputs
from harness.hostile_scenes import Kind, Scene
from harness.processes import send_signal
from recycle.control.board.joinfile import JOIN_FILE

PATIENCE, MOST = 300.0, 8
"""Seconds after which a run that has not ended has hung, and how many ways of a kind count when one is drawn."""


class Drawn(NamedTuple):
    """A moment that was drawn.

    Attributes:
        kind: of what is done.
        choice: which of its ways.
        at: the iteration at which it is done, unless it is done before the start.
        seconds: how long it lasts, where it ends.
        killed: a server that is killed as well; empty for none.
        after: seconds from the hostile thing to that.
        keeps: whether the run keeps its state in memory.
    """

    kind: str
    choice: str
    at: int
    seconds: float
    killed: str
    after: float
    keeps: bool

    def __str__(self) -> str:
        kept = ", kept in memory" if self.keeps else ""
        killed = f", {self.killed} killed {self.after:.1f} s later" if self.killed else ""
        return f"{self.kind}: {self.choice}, at {self.at} for {self.seconds:.1f} s{kept}{killed}"


def draw(seed: int, number: int, only: str = "") -> Drawn:
    """A moment, from the seed and its number alone."""
    source = random.Random(f"{seed}-{number}")
    weights = [min(len(kind.choices), MOST) for kind in KINDS.values()]
    name = only or source.choices(list(KINDS), weights)[0]
    choice = source.choice(KINDS[name].choices)
    killed = source.choice(SERVERS) if source.random() < 0.5 else ""
    times = source.randint(3, 40), round(source.uniform(2, 8), 1)
    return Drawn(name, choice, *times, killed, round(source.uniform(0, 3), 1), source.random() < 1 / 3)


class Verdict(NamedTuple):
    """What came of a moment.

    Attributes:
        came: of it, in a word or two.
        problems: what was wrong with that.
    """

    came: str
    problems: list[str]


def play(drawn: Drawn, folder: Path, expected: Mapping[float, float], log: Path) -> Verdict:
    """Let a moment happen, and judge it."""
    kind = KINDS[drawn.kind]
    write_inputs(folder)
    with contextlib.ExitStack() as stack:
        scene = Scene(folder, drawn.choice, drawn.seconds, stack)
        scene.words = words_of(folder, *(("--keep-in-memory", "copies=1") if drawn.keeps else ()))
        kind.prepare(scene)
        scene.start()
        try:
            befall(drawn, kind, scene)
            verdict = judge(kind, scene, expected, killed=bool(drawn.killed))
        finally:
            for each in scene.runs:
                each.clear()
        if verdict.problems:
            texts = [f"--- run {number}\n{timed(each)}" for number, each in enumerate(scene.runs)]
            log.write_text("\n".join([str(drawn), *verdict.problems, *texts]) + "\n")
    return verdict


def timed(run: Run) -> str:
    """What a run has printed, with the seconds of each line."""
    began = run.lines[0][0] if run.lines else 0.0
    return "\n".join(f"{when - began:7.2f} {text}" for when, text in run.lines)


def befall(drawn: Drawn, kind: Kind, scene: Scene) -> None:
    """Do what was drawn, each at its time, as long as the run goes on."""
    run = scene.run
    if kind.strikes_at_iteration(drawn.choice) and not run.reach(drawn.at):
        return
    struck = time.monotonic()
    kind.strike(scene)
    due: list[tuple[float, Callable[[], None]]] = [(drawn.seconds, partial(kind.heal, scene))]
    if drawn.killed:
        due.append((drawn.after, partial(kill, run, drawn.killed)))
    for when, do in sorted(due, key=lambda each: each[0]):
        while time.monotonic() < struck + when and not run.is_over:
            time.sleep(0.02)
        do()


def kill(run: Run, server: str) -> None:
    """Kill a server, as soon as training has begun."""
    if run.reach(1):
        for pid in run.called(f"^recycle: {server}$"):
            send_signal(pid, signal.SIGKILL)


def judge(kind: Kind, scene: Scene, expected: Mapping[float, float], *, killed: bool) -> Verdict:
    """Wait for the end of a moment, and say what came of it."""
    run = scene.run
    status = run.end(PATIENCE)
    kind.after(scene)
    came, problems = ending(run, status)
    problems += scene.problems
    if came not in kind.allowed(scene.choice, killed=killed):
        problems.append(f"{came}, status {status}, after iteration {run.iteration}: {last_line(run)}")
    kept = "--keep-in-memory" in scene.words and came == "ended"
    problems += [] if status is None else watched(run, kept=kept)
    problems += loss_problems(run.shown, scene.folder / "run", expected)
    if came == "trained" and scene.is_heard:
        lacks = [step for step in range(1, ITERATIONS + 1) if step not in run.shown]
        problems += [f"no line of {len(lacks)} iterations, first {lacks[0]}"] if lacks else []
    elif came == "ended" and (kind.resumes(scene) or (kept and is_in_memory(kind, scene))):
        came = "ended, resumed"
        again = scene.start("--resume")
        status = again.end(PATIENCE)
        problems += [*watched(again), *left_behind(run)]
        if status != 0 or again.iteration < ITERATIONS:
            problems.append(f"--resume: status {status} after iteration {again.iteration}: {last_line(again)}")
        problems += loss_problems(again.shown, scene.folder / "run", expected)
    for each in scene.others:
        status = each.end(PATIENCE)
        problems += watched(each)
        problems += loss_problems(each.shown, scene.folder / "none", expected)
        if status != 0:
            problems.append(f"the other run: status {status} after iteration {each.iteration}: {last_line(each)}")
    return Verdict(came, problems)


def is_in_memory(kind: Kind, scene: Scene) -> bool:
    """Whether a run that has ended has left its state in the memory of this machine."""
    return kind.lets_keep(scene.choice) and (scene.output / JOIN_FILE).is_file()


def ending(run: Run, status: int | None) -> tuple[str, list[str]]:
    """How a run ended, and whether that was said as it has to be."""
    if status is None:
        return "hung", []
    if status == 0:
        return "trained", []
    said = [text for _, text in run.lines if text.startswith("recycle: ")]
    came = "ended" if run.iteration else "refused"
    if status in (-signal.SIGKILL, -signal.SIGHUP):
        return came, []
    problems = [] if said and run.lines[-1][1] == said[-1] else [f"its last line is not plain: {last_line(run)}"]
    reasons = [text for text in said if " waits for " not in text]
    if came == "refused" and len(reasons) > 1:
        problems.append(f"{len(reasons)} lines in place of one: {' / '.join(reasons)[:300]}")
    return came, problems


def watched(run: Run, *, kept: bool = False) -> list[str]:
    """What may not be seen of any run.

    Args:
        run: which.
        kept: whether the memory of this machine keeps its state for a start with --resume.
    """
    ugly = [text for _, text in run.lines if UGLY.search(text)]
    problems = [f"it says {ugly[0][:160]!r}"] if ugly else []
    return [*problems, *run.silences(), *left_behind(run, "recycle: keeper" if kept else "")]


def left_behind(run: Run, may: str = "") -> list[str]:
    """What is there of a run that has ended, and may not."""
    left = run.left(may)
    return [f"left behind: {', '.join(left)}"] if left else []


def last_line(run: Run) -> str:
    return run.lines[-1][1][:300] if run.lines else "it said nothing"


def undisturbed() -> dict[float, float]:
    """The losses of a run that nothing befalls."""
    with tempfile.TemporaryDirectory(prefix="recycle-hostile-") as name:
        folder = Path(name)
        write_inputs(folder)
        run = Run(words_of(folder))
        try:
            status = run.end(PATIENCE)
        finally:
            run.clear()
        if status != 0 or len(run.shown) != ITERATIONS:
            sys.exit(f"a run that nothing befalls does not come to its end:\n{run.said[-3000:]}")
        return recorded(folder / "run")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--moments", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="default: any, which is printed")
    parser.add_argument("--first", type=int, default=0, help="the number of the first moment")
    parser.add_argument("--kind", choices=list(KINDS), default="", help="of this kind only")
    parser.add_argument("-o", "--output", type=Path, default=Path(), help="the folder for what failed moments printed")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    numbers = []
    with until_interrupted():
        expected = undisturbed()
        for number in range(arguments.first, arguments.first + arguments.moments):
            drawn, began = draw(arguments.seed, number, arguments.kind), time.monotonic()
            if why := KINDS[drawn.kind].why_not():
                print(f"{arguments.seed}  {number:3}  {drawn}: left out, {why}", flush=True)
                continue
            with tempfile.TemporaryDirectory(prefix="recycle-hostile-", ignore_cleanup_errors=True) as folder:
                log = arguments.output / f"moment-{arguments.seed}-{number}.log"
                came, problems = play(drawn, Path(folder), expected, log)
            counts[f"{drawn.kind}: {came}"] += 1
            failed[drawn.kind] += bool(problems)
            numbers += [number] if problems else []
            verdict = f"{came}; FAILED: {'; '.join(problems)}" if problems else came
            print(f"{arguments.seed}  {number:3}  {drawn}: {verdict} ({time.monotonic() - began:.0f} s)", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:3}  {name}")
    which = f": {', '.join(map(str, numbers))}" if numbers else ""
    played = counts.total()
    print(f"seed {arguments.seed}: {len(numbers)} of {played} moments failed{which}; load {os.getloadavg()[0]:.1f}")
    return int(bool(numbers))


if __name__ == "__main__":
    sys.exit(main())
