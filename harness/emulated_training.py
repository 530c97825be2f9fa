"""Runs of emulated servers with everything else real: launcher, agents, recovery. Servers are killed from outside."""

import multiprocessing
import os
import signal
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

from harness.emulated_server import Emulated, EmulatedServer
from harness.examples import paper_job
from harness.processes import send_signal
from recycle.cli.run.model import quiet
from recycle.control.host.agent import run_agent
from recycle.control.membership.durations import Durations
from recycle.control.membership.view import Member, View
from recycle.faults.menu import Faults
from recycle.job import Server
from recycle.plan.catalogue import Catalogue
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan
from recycle.planner.source import plan_ahead, plan_maker
from recycle.record.recording import DeathLine, EvaluationLine, InstantLine, IterationLine, RecoveryLine, ViewLine
from recycle.record.reporting import Event, FileReporter
from recycle.runtime.execute.injection import Injector
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
HOUR_OF_KILLS = 100_000
PHASES = ("noticed", "agreed", "rebuilt", "restored")
WORKERS = "workers"
"""The folder, in the run's, in which each server's newest process has its number."""


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
        slot: seconds for one unit of the job's time.
        iterations: after which it ends.
    """

    def __init__(
        self,
        pipelines: int,
        stages: int,
        micro_batches: int,
        folder: Path,
        patience: float = 60.0,
        slot: float = SLOT,
        iterations: int = ENDLESS,
    ) -> None:
        self.servers = pipelines * stages
        self._folder = folder
        self._patience = patience
        self._changed = threading.Condition()
        self._views: dict[int, ViewLine] = {}
        self._recoveries: dict[int, list[RecoveryLine]] = {}
        self._finished: dict[str, int] = {}
        self._told: list[str] = []
        # All runs of a benchmark have what is imported here once.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["harness.emulated_server", "recycle.runtime.launch.supervise.supervisor", "recycle.planner.source"]
        )
        self._lines, theirs = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_run, args=(pipelines, stages, micro_batches, folder, slot, iterations, theirs)
        )
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

    def await_iteration(self, step: int) -> tuple[Server, ...]:
        """Wait until any server has made an iteration; gives the servers of the view."""
        self._wait(lambda: max(self._finished.values(), default=-1) >= step, f"iteration {step + 1} was made")
        with self._changed:
            return tuple(map(Server.parse, self._views[max(self._views)].servers))

    def await_end(self) -> None:
        """Wait until the run has ended by itself."""
        self._process.join(self._patience)
        if self._process.exitcode is None:
            raise TimeoutError(f"the run has not ended within {self._patience:g} s")

    def kill(self, server: Server) -> float:
        """Kill a server's newest process with SIGKILL; gives the moment right before, in the run's microseconds."""
        lives = (self._folder / WORKERS).glob(f"{server}#*")
        newest = max(lives, key=lambda path: Member.parse(path.name))
        moment = time.monotonic() * MICROSECONDS
        send_signal(int(newest.read_text()), signal.SIGKILL)
        return moment

    def await_recovery(self, dead: set[Server], moment: float) -> Recovered:
        """Wait until the iteration has been made again without some servers.

        Args:
            dead: the servers that were killed.
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


def launch_emulated(
    plan: Plan,
    folder: Path,
    slot: float,
    iterations: int,
    tell: Callable[[Event], None],
    *,
    faults: Faults = Faults(),  # noqa: B008 - immutable
    restarts: int = 0,
    catalogue: Path | None = None,
) -> None:
    """Be the launcher of a run, to its end.

    Args:
        plan: that it begins with.
        folder: of the run.
        slot: seconds for one unit of the job's time.
        iterations: the step at which it ends.
        tell: told what happens.
        faults: what goes wrong.
        restarts: how often a server that was killed is started again, within an hour.
        catalogue: plans for failures; None to make them when servers fail.
    """
    job = plan.job
    (folder / WORKERS).mkdir(parents=True)
    setting = Setting(
        job, View.of(plan), 0, "memory", {"emulated": "1"}, Durations(), "127.0.0.1", faults, folder, lambda: False,
        restarts,
    )  # fmt: skip
    emulated = Emulated(job, plan.mode.optimizer == "staggered", slot, iterations)
    Supervisor(setting, partial(_serve, emulated, plan, catalogue, setting), tell).run()


def _run(
    pipelines: int, stages: int, micro_batches: int, folder: Path, slot: float, iterations: int, lines: Connection
) -> None:
    """The launcher's process."""
    quiet()
    job, mode = paper_job(pipelines=pipelines, stages=stages, micro_batches=micro_batches), Mode()
    catalogue = plan_ahead(job, mode, folder / "plans.zip")

    def tell(event: Event) -> None:
        if not isinstance(event, EvaluationLine):
            lines.send_bytes(msgspec.json.encode(event))

    plan = plan_maker(job, mode)(())
    launch_emulated(plan, folder, slot, iterations, tell, restarts=HOUR_OF_KILLS, catalogue=catalogue)


def _serve(
    emulated: Emulated, plan: Plan, catalogue: Path | None, setting: Setting, member: Member, door: RunAccess
) -> int:
    job, durations = emulated.job, setting.durations

    def work() -> int:
        torch.set_num_threads(1)
        (setting.folder / WORKERS / str(member)).write_text(str(os.getpid()))
        first = not member.incarnation
        send = LauncherConnection(door.watch, door.endpoint.token, str(member), os.getpid(), required=first)
        reporter = FileReporter(
            setting.folder / "events", str(member), "emulated", lambda content: send(ReportMessage(content))
        )
        trainee = EmulatedServer(emulated, member.server, reporter)
        found = None if catalogue is None else Catalogue(catalogue, job)
        plans = Plans(plan, found, plan_maker(job, plan.mode))
        mine = setting.faults.of_worker(member.server, member.incarnation)
        hooks = [Injector(mine, lambda fault, time: None, lambda: (), ())] if mine else []
        survivor = Survivor(member, job, trainee.trainee, door.endpoint, durations, plans, reporter, hooks)
        return TrainingLoop(survivor, trainee).run()

    return run_agent(member, work, door.endpoint.connect, door.endpoint.token, durations)
