"""One series of failures and repairs through the simulator and through emulated servers: how far are they apart?

Usage: python -m benchmarks.fidelity [--kills 10] [--apart 6] [--slot-ms 20] [--seed 0]

The emulated servers sleep their durations; every message, group, signal and store access is real. The simulator is
given the times at which servers were dead in that run, because a replacement's process takes its time to start, and
periods that may be below that of 1F1B, because the servers run such plans.
"""

import argparse
import math
import os
import random
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.soak import DURATIONS
from recycle.cli.model import quiet
from recycle.control.agent import run_agent
from recycle.control.view import Member, View
from recycle.faults.menu import Fault, Faults, Kind
from recycle.faults.outages import NodeOutage, Outages
from recycle.job import Job, Server
from recycle.jobfile import load_job
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan
from recycle.planner.source import plan_maker
from recycle.record.recording import IterationLine, Line, ViewLine
from recycle.record.reporting import EventFile, FileReporter
from recycle.runtime.emulate.server import Emulated, EmulatedServer
from recycle.runtime.launch.messages import ReportMessage
from recycle.runtime.launch.report_channel import connect_to_launcher
from recycle.runtime.launch.supervisor import RunAccess, Setting, Supervisor
from recycle.runtime.recover.plans import Plans
from recycle.runtime.recover.survivor import Survivor
from recycle.runtime.recover.training_loop import TrainingLoop
from recycle.study.constants import TYPICAL
from recycle.study.policies.ours import Rerouting
from recycle.study.rates import Ground, Rates
from recycle.study.simulator import simulate

PAUSE = 0.1
"""Seconds of a recovery of some servers, as runs had them before."""


def serve(job: Job, plan: Plan, iterations: int, slot: float, folder: Path, member: Member, door: RunAccess) -> int:
    def work() -> int:
        import torch

        torch.set_num_threads(1)
        send = connect_to_launcher(door.watch, door.endpoint.token, str(member), os.getpid())
        file = EventFile(folder / "events", str(member), "fidelity")
        reporter = FileReporter(file, lambda content: send(ReportMessage(content)))
        trainee = EmulatedServer(Emulated(job, False, slot, iterations), member.server, reporter)
        plans = Plans(plan, None, plan_maker(job, plan.mode))
        survivor = Survivor(member, job, trainee.trainee, door.endpoint, DURATIONS, plans, reporter, [])
        return TrainingLoop(survivor, trainee).run()

    return run_agent(member, work, door.endpoint.connect, door.endpoint.token, DURATIONS)


def choose_faults(job: Job, kills: int, apart: float, seed: int) -> Faults:
    source = random.Random(seed)
    found: list[Fault] = []
    for number in range(1, kills + 1):
        server = source.choice(job.servers())
        found.append(Fault(Kind.KILL, (server,), at=number * apart))
        found.append(Fault(Kind.JOIN, (server,), at=(number + 0.3) * apart))
    return Faults(tuple(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--apart", type=float, default=6.0, help="seconds between kills")
    parser.add_argument("--slot-ms", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    quiet()
    job = load_job(Path("schedules/paper.toml"), {"stages": 2, "micro_batches": 4})
    slot = arguments.slot_ms / 1000
    plan = plan_maker(job, Mode())(())
    iterations = math.ceil((arguments.kills + 1) * arguments.apart / (plan.period * slot))
    ends: dict[int, float] = {}
    views: dict[int, tuple[float, ViewLine]] = {}

    def watch(line: Line) -> None:
        now = time.monotonic()
        if isinstance(line, IterationLine):
            ends[line.step] = now
        elif isinstance(line, ViewLine):
            views.setdefault(line.epoch, (now, line))

    hung = threading.Timer(600, os._exit, [3])
    hung.daemon = True
    hung.start()
    faults = choose_faults(job, arguments.kills, arguments.apart, arguments.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        setting = Setting(
            job, View.of(plan), 0, "memory", {"fidelity": "1"}, DURATIONS, "127.0.0.1", faults, folder,
            lambda: False,
        )  # fmt: skip
        Supervisor(setting, partial(serve, job, plan, iterations, slot, folder), watch).run()
    hung.cancel()
    start, end = ends[0], max(ends.values())
    measured = (len(ends) - 1) / (end - start)
    outages = dead_times(job, [view for _, view in sorted(views.items())], start, end)
    iteration = plan.baseline * slot
    rates = Rates(job, 16, most=math.inf)
    ground = Ground(job, iteration, 16, 1.0)
    policy = Rerouting(ground, rates, msgspec.structs.replace(TYPICAL, oobleck_pause=PAUSE))
    simulated = simulate(policy, job.pipelines, job.depth, outages).progress / iteration / outages.seconds
    print(f"{len(outages.entries)} outages in {outages.seconds:.1f} s, iterations of {plan.period * slot:.2f} s")
    # Without a failure the two must agree, or the machine is too busy to say anything.
    whole = [step for step in sorted(ends) if ends[step] < start + arguments.apart]
    undisturbed = (len(whole) - 1) / (ends[whole[-1]] - start)
    print(f"emulated before the first kill {undisturbed:.4f} iterations/s, planned {1 / plan.period / slot:.4f}")
    print(f"emulated  {measured:.4f} iterations/s")
    print(f"simulated {simulated:.4f} iterations/s, {simulated / measured - 1:+.1%}")
    return 0


def dead_times(job: Job, views: list[tuple[float, ViewLine]], start: float, end: float) -> Outages:
    """Who was in no view, and when."""
    since: dict[int, float] = {}
    entries = []
    for time_of_view, view in views:
        at = min(max(time_of_view, start), end) - start
        live = {server.pipeline * job.depth + server.stage for server in map(Server.parse, view.servers)}
        for place in range(job.pipelines * job.depth):
            if place not in live:
                since.setdefault(place, at)
            elif place in since:
                entries.append(NodeOutage(place, since.pop(place), at))
    entries += [NodeOutage(place, begin, end - start) for place, begin in since.items()]
    entries = sorted((entry for entry in entries if entry.start < entry.end), key=lambda entry: entry.start)
    return Outages("emulated", job.pipelines * job.depth, end - start, tuple(entries))


if __name__ == "__main__":
    sys.exit(main())
