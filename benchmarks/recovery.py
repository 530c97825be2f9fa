"""How long training stands still after kill -9, from right before the signal to the first instruction of the redo.

Usage: python -m benchmarks.recovery real [--kills 30] [--seed 0] [--shape 3x4] [--keep FOLDER]
       python -m benchmarks.recovery emulated [--shapes 3x4 3x8 4x8 3x16] [--kills 20] [--seed 0]

``real``: the real model, kills right after random instructions of the victim. Every kill is followed by a rejoin, so
that each meets a view of all servers, 12 if nothing is said, or of one less; the last column says when every survivor
was ready.

``emulated``: more and more servers that sleep their durations, killed at random moments; a shape is pipelines x stages.
A server that was killed is started again by its launcher and joins by itself, so one run serves for many kills. Every
message, group, signal and store access is real.
"""

import argparse
import math
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import torch

from benchmarks.shared import add_shape, paper_shaped, run_part, sizes
from harness.emulated_server import Emulated, EmulatedServer
from harness.examples import paper_job
from harness.processes import send_signal
from recycle.cli.run.model import quiet
from recycle.control.host.agent import run_agent
from recycle.control.membership.durations import Durations
from recycle.control.membership.view import Member, View
from recycle.faults.fired import load_fired
from recycle.faults.menu import Fault, Faults, Kind
from recycle.faults.pattern import InstructionPattern
from recycle.job import Job, Server
from recycle.plan.catalogue import Catalogue
from recycle.plan.instruction import Op
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan
from recycle.planner.source import plan_ahead, plan_maker
from recycle.record.history import History
from recycle.record.reading import load_lines
from recycle.record.recording import DeathLine, EvaluationLine, InstantLine, IterationLine, Line, RecoveryLine, ViewLine
from recycle.record.reporting import Event, FileReporter
from recycle.runtime.launch.process.messages import ReportMessage
from recycle.runtime.launch.process.report_channel import LauncherConnection
from recycle.runtime.launch.supervise.setting import RunAccess, Setting
from recycle.runtime.launch.supervise.supervisor import Supervisor
from recycle.runtime.recover.plans import Plans
from recycle.runtime.recover.survivor import Survivor
from recycle.runtime.recover.training_loop import TrainingLoop

SLOT = 0.004
ENDLESS = 10**9
MICROSECONDS = 1e6
DURATIONS = Durations()
HOUR_OF_KILLS = 100_000


class Recovered(NamedTuple):
    """What came of a kill; all in seconds.

    Attributes:
        first: from the signal to the first instruction of the iteration that is made again.
        heard: to the first survivor that knew.
        detect: to the last one.
        agree: from then to the last that had the new view.
        rebuild: from then to the last that was connected.
        restore: from then to the last that held the state.
        views: that were decided until one began.
    """

    first: float
    heard: float
    detect: float
    agree: float
    rebuild: float
    restore: float
    views: int


class EmulatedRun:
    """A run in processes of its own.

    Args:
        pipelines: of the job.
        stages: of the job.
        micro_batches: of a pipeline.
        folder: an empty one.
        patience: seconds to wait for anything.
    """

    def __init__(self, pipelines: int, stages: int, micro_batches: int, folder: Path, patience: float = 60.0) -> None:
        self.servers = pipelines * stages
        self._folder = folder
        self._patience = patience
        self._changed = threading.Condition()
        self._views: dict[int, ViewLine] = {}
        self._recoveries: dict[int, list[RecoveryLine]] = {}
        self._finished: dict[str, int] = {}
        self._told: list[str] = []
        context = multiprocessing.get_context("spawn")
        self._lines, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_run, args=(pipelines, stages, micro_batches, folder, theirs))
        self._process.start()
        # All processes of the run have the other end.
        theirs.close()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all of it: what it has forked dies with it, and then its folder may go."""
        self._process.kill()
        self._process.join()
        self._listener.join()

    @property
    def causes(self) -> list[str]:
        """Why there was each view that has begun, the first one included."""
        with self._changed:
            return [line.cause for _, line in sorted(self._views.items())]

    def await_whole(self, iterations: int) -> tuple[Server, ...]:
        """Wait until all servers are in the view and have made some iterations in it; gives them."""

        def is_whole() -> bool:
            newest = self._views.get(max(self._views, default=-1))
            if newest is None or len(newest.servers) < self.servers:
                return False
            return all(self._finished.get(each, -1) >= newest.step + iterations for each in newest.servers)

        self._wait(is_whole, "all servers were in the view")
        return tuple(map(Server.parse, self._views[max(self._views)].servers))

    def kill(self, server: Server) -> float:
        """Kill a server's newest process with SIGKILL; gives the moment right before, in the run's microseconds."""
        lives = (self._folder / "workers").glob(f"{server}#*")
        newest = max(lives, key=lambda path: Member.parse(path.name))
        moment = time.monotonic() * MICROSECONDS
        send_signal(int(newest.read_text()), signal.SIGKILL)
        return moment

    def await_recovery(self, dead: set[Server], moment: float) -> Recovered:
        """Wait until the iteration has been made again without some servers.

        Args:
            dead: who was killed.
            moment: when the last of them was.
        """
        names = set(map(str, dead))

        def epoch() -> int | None:
            for number, lines in self._recoveries.items():
                view = self._views.get(number)
                if (
                    view is not None
                    and names.isdisjoint(view.servers)
                    and len(lines) == len(view.servers)
                    and min(each.resumed for each in lines) > moment
                ):
                    return number
            return None

        before = max((number for number, line in self._views.items() if line.time < moment), default=0)
        self._wait(lambda: epoch() is not None, f"the iteration was made again without {', '.join(sorted(names))}")
        found = epoch()
        assert found is not None
        lines = self._recoveries[found]
        times = [moment, *(max(getattr(each, name) for each in lines) for name in PHASES)]
        spans = [(later - earlier) / MICROSECONDS for earlier, later in pairwise(times)]
        first, heard = (min(getattr(each, name) for each in lines) - moment for name in ("resumed", "noticed"))
        detect, agree, rebuild, restore = spans
        seen = (first / MICROSECONDS, heard / MICROSECONDS)
        return Recovered(*seen, detect, agree, rebuild, restore, found - before)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, self._patience):
                newest, last = max(self._views, default=-1), "; ".join(self._told[-6:])
                raise TimeoutError(f"{self._patience:g} s have passed before {what}; view {newest}; last: {last}")

    def _listen(self) -> None:
        decoder = msgspec.json.Decoder(Event)
        while True:
            try:
                line = decoder.decode(self._lines.recv_bytes())
            except EOFError:
                return
            with self._changed:
                if isinstance(line, ViewLine):
                    self._views.setdefault(line.epoch, line)
                elif isinstance(line, RecoveryLine):
                    self._recoveries.setdefault(line.epoch, []).append(line)
                elif isinstance(line, IterationLine):
                    self._finished[line.server] = line.step
                elif isinstance(line, InstantLine | DeathLine):
                    self._told.append(f"{line.server} {line.text if isinstance(line, InstantLine) else line.reason}")
                self._changed.notify_all()


PHASES = ("noticed", "agreed", "rebuilt", "restored")


def _run(pipelines: int, stages: int, micro_batches: int, folder: Path, lines: Connection) -> None:
    """The launcher's process."""
    quiet()
    job = paper_job(pipelines=pipelines, stages=stages, micro_batches=micro_batches)
    mode = Mode()
    plan = plan_maker(job, mode)(())
    catalogue = plan_ahead(job, mode, folder / "plans.zip")
    (folder / "workers").mkdir()
    setting = Setting(
        job,
        View.of(plan),
        0,
        "memory",
        {"benchmark": "1"},
        DURATIONS,
        "127.0.0.1",
        Faults(),
        folder,
        lambda: False,
        HOUR_OF_KILLS,
    )

    def tell(event: Event) -> None:
        if not isinstance(event, EvaluationLine):
            lines.send_bytes(msgspec.json.encode(event))

    Supervisor(setting, partial(_serve, job, plan, catalogue, folder), tell).run()


def _serve(job: Job, plan: Plan, catalogue: Path | None, folder: Path, member: Member, door: RunAccess) -> int:
    def work() -> int:
        torch.set_num_threads(1)
        (folder / "workers" / str(member)).write_text(str(os.getpid()))
        first = not member.incarnation
        send = LauncherConnection(door.watch, door.endpoint.token, str(member), os.getpid(), required=first)
        reporter = FileReporter(
            folder / "events", str(member), "emulated", lambda content: send(ReportMessage(content))
        )
        trainee = EmulatedServer(Emulated(job, False, SLOT, ENDLESS), member.server, reporter)
        found = None if catalogue is None else Catalogue(catalogue, job)
        plans = Plans(plan, found, plan_maker(job, plan.mode))
        survivor = Survivor(member, job, trainee.trainee, door.endpoint, DURATIONS, plans, reporter)
        return TrainingLoop(survivor, trainee).run()

    return run_agent(member, work, door.endpoint.connect, door.endpoint.token, DURATIONS)


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


if __name__ == "__main__":
    sys.exit(run_part(__doc__, {"real": real, "emulated": emulated}))
