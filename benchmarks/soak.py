"""Many kills and rejoins in one run of emulated servers: nothing may hang, be done twice, be skipped, or grow.

Usage: python -m benchmarks.soak [--kills 200] [--hosts 0] [--seed 0] [--minutes 30]

The servers sleep their durations and count their optimizer steps; every message, group, signal and store access is
real. An iteration that begins with another count than its number, or with another than its peers', fails at once.
With --hosts 5, every fifth kill is that of a host: the agents of all servers of a pipeline at one moment, with their
workers, so that nobody tells of it and only silence does. What each process holds is compared between the first tenth
of the run and its end.
"""

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import msgspec
import torch

from harness.emulated_server import Emulated, EmulatedServer
from recycle.cli.model import quiet
from recycle.control.host.agent import run_agent
from recycle.control.membership.durations import Durations
from recycle.control.membership.view import Member, View
from recycle.control.store.tcp_store import TorchStore
from recycle.faults.menu import Fault, Faults, Kind
from recycle.job import Job, Server
from recycle.jobfile import load_job
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan
from recycle.planner.source import plan_maker
from recycle.record.recording import IterationLine, Line, ViewLine
from recycle.record.reporting import FileReporter
from recycle.runtime.launch.process.messages import ReportMessage
from recycle.runtime.launch.process.report_channel import LauncherConnection
from recycle.runtime.launch.supervise.setting import RunAccess, Setting
from recycle.runtime.launch.supervise.supervisor import Supervisor
from recycle.runtime.recover.plans import Plans
from recycle.runtime.recover.survivor import Survivor
from recycle.runtime.recover.training_loop import TrainingLoop

APART = 24
FEWEST = 3
SLOT = 0.004
FOLDER = "growth"


class Held(msgspec.Struct, frozen=True):
    """What a process holds at the end of an iteration.

    Attributes:
        step: the iteration.
        memory: resident, in MiB.
        threads: its threads.
        sockets: its open files, sockets among them.
        keys: in the store.
    """

    step: int
    memory: float
    threads: int
    sockets: int
    keys: int


def look(step: int, store: TorchStore) -> Held:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Held(
        step,
        pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        len(list(Path("/proc/self/task").iterdir())),
        len(list(Path("/proc/self/fd").iterdir())),
        store.torch_store.num_keys(),
    )


class Watched(EmulatedServer):
    """An emulated server that writes down what its process holds."""

    def watch(self, path: Path, store: TorchStore) -> None:
        """Write to a file what the process holds, and how many keys the store has."""
        self.growth = path.open("ab", buffering=0)
        self.store = store

    def iterate(self, step: int) -> None:
        """See Loop."""
        super().iterate(step)
        if step % APART == APART - 1:
            self.growth.write(msgspec.json.encode(look(step, self.store)) + b"\n")


def serve(job: Job, plan: Plan, iterations: int, folder: Path, faults: Faults, member: Member, door: RunAccess) -> int:
    def work() -> int:
        from recycle.runtime.execute.injection import Injector

        torch.set_num_threads(1)
        send = LauncherConnection(door.watch, door.endpoint.token, str(member), os.getpid())
        reporter = FileReporter(folder / "events", str(member), "soak", lambda content: send(ReportMessage(content)))
        trainee = Watched(Emulated(job, False, SLOT, iterations), member.server, reporter)
        store = door.endpoint.connect()
        assert isinstance(store, TorchStore)
        trainee.watch(folder / FOLDER / f"{member}.jsonl", store)
        mine = faults.of_worker(member.server, member.incarnation)
        hooks = [Injector(mine, lambda fault, time_ns: None, list)] if mine else []
        plans = Plans(plan, None, plan_maker(job, plan.mode))
        survivor = Survivor(member, job, trainee.trainee, door.endpoint, DURATIONS, plans, reporter, hooks)
        return TrainingLoop(survivor, trainee).run()

    return run_agent(member, work, door.endpoint.connect, door.endpoint.token, DURATIONS)


DURATIONS = Durations()


def choose_faults(job: Job, kills: int, hosts: int, seed: int) -> Faults:
    source = random.Random(seed)
    lives = dict.fromkeys(job.servers(), 0)
    found: list[Fault] = []
    for number in range(kills):
        server: Server = source.choice(job.servers())
        step = 2 + APART * number
        victims: tuple[Server, ...] = (server,)
        if hosts and number % hosts == hosts - 1:
            victims = tuple(Server(server.pipeline, stage) for stage in range(job.depth))
            found.append(Fault(Kind.AGENT_KILL, victims, step=step))
        else:
            found.append(Fault(Kind.KILL, victims, step=step, incarnation=lives[server]))
        for each in victims:
            found.append(Fault(Kind.JOIN, (each,), step=step + 1))
            lives[each] += 1
    return Faults(tuple(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--hosts", type=int, default=0, help="of how many kills one is that of a host; 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30.0, help="after which the run has hung")
    parser.add_argument("--views", action="store_true", help="print every view")
    arguments = parser.parse_args()
    if arguments.kills < FEWEST:
        parser.error(
            f"--kills {arguments.kills}: growth is looked for between two tenths of the run; give {FEWEST} or more"
        )
    quiet()
    job = load_job(Path("schedules/paper.toml"), {"stages": 2, "micro_batches": 4})
    plan = plan_maker(job, Mode())(())
    faults = choose_faults(job, arguments.kills, arguments.hosts, arguments.seed)
    iterations = APART * (arguments.kills + 2)
    views: dict[int, ViewLine] = {}
    finished: dict[int, int] = {}

    def watch(line: Line) -> None:
        if isinstance(line, ViewLine) and line.epoch not in views:
            views[line.epoch] = line
            if len(views) % 20 == 0:
                print(f"view {line.epoch}, iteration {line.step} of {iterations}", file=sys.stderr, flush=True)
        elif isinstance(line, IterationLine):
            finished[line.step] = finished.get(line.step, 0) + 1

    hung = threading.Timer(arguments.minutes * 60, os._exit, [3])
    hung.daemon = True
    hung.start()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / FOLDER).mkdir()
        setting = Setting(
            job, View.of(plan), 0, "memory", {"soak": "1"}, DURATIONS, "127.0.0.1", faults, folder,
            lambda: False,
        )  # fmt: skip
        Supervisor(setting, partial(serve, job, plan, iterations, folder, faults), watch).run()
        grown = growth(folder / FOLDER, iterations)
    deaths = sum(1 for view in views.values() if "killed" in view.cause or "no sign of life" in view.cause)
    joins = sum(len(view.joined) for view in views.values())
    skipped = [step for step in range(iterations) if step not in finished]
    print(f"{deaths} kills and {joins} rejoins in {len(views)} views, {time.monotonic() - start:.0f} s")
    print(f"iterations: {iterations}, skipped: {len(skipped)}; doubled steps would have failed the run")
    if arguments.views:
        for view in views.values():
            print(view.epoch, view.step, len(view.servers), view.joined, view.cause)
    for name, (before, after) in grown.items():
        print(f"{name:8} {before:8.1f} -> {after:8.1f}")
    has_grown = any(after > before * 1.3 for before, after in grown.values())
    return int(bool(skipped) or deaths < arguments.kills or has_grown)


def growth(folder: Path, iterations: int) -> dict[str, tuple[float, float]]:
    """The most that a process held in the second tenth of the run, and in the last."""
    seen = [each for path in folder.iterdir() for each in msgspec.json.Decoder(Held).decode_lines(path.read_bytes())]
    early = [each for each in seen if iterations * 0.1 <= each.step < iterations * 0.2]
    late = [each for each in seen if each.step >= iterations * 0.9]
    return {
        name: (max(getattr(each, name) for each in early), max(getattr(each, name) for each in late))
        for name in ("memory", "threads", "sockets", "keys")
    }


if __name__ == "__main__":
    sys.exit(main())
