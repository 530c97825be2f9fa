"""Runs that survive: real processes under the supervisor, whose servers write down what they hold."""

import hashlib
import os
import signal
import threading
from pathlib import Path
from typing import NamedTuple

import torch

from harness.examples import QUICK, paper_job
from recycle.control.host.agent import run_agent
from recycle.control.membership.durations import Durations
from recycle.control.membership.view import Member, View
from recycle.faults.menu import Fault, Faults, Kind
from recycle.job import Server
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.record.reporting import FileReporter
from recycle.runtime.launch.process.messages import ReportMessage, run_and_tell
from recycle.runtime.launch.process.report_channel import LauncherConnection
from recycle.runtime.launch.supervise.setting import Setting
from recycle.runtime.launch.supervise.supervisor import Supervisor
from recycle.runtime.recover.plans import Plans
from recycle.runtime.recover.survivor import Survivor
from recycle.runtime.recover.training_loop import TrainingLoop

JOB = paper_job(pipelines=2, stages=2, micro_batches=2, released=0)
# A beat is short, so that joiners are seen soon; no test waits for any of the others to be over.
DURATIONS = Durations(beat=0.1, silence=25.0, hang=25.0, rebuild=25.0)
LOST, JOINER = Member(Server(1, 0), 0), Member(Server(1, 0), 1)
REJOIN = (Fault(Kind.JOIN, (JOINER.server,), step=4),)
AFTERWARDS = 10
ENDLESS = 10**9


class Note(NamedTuple):
    """What a member has written down: what it did, with which version, what that was, and in which thread."""

    kind: str
    step: int
    digest: str
    thread: str


def digest(state):
    """Of all tensors, to the bit."""
    found = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        found.update(name.encode())
        found.update(tensor.detach().contiguous().view(-1).numpy().tobytes())
    return found.hexdigest()


def noting(kind):
    """A training of some kind that writes down its versions, and ends some iterations after a view has come."""

    class Noting(kind):
        def prepare(self, member, folder, ends, trouble):
            self.member = member
            self.folder = folder
            self.ends = ends
            self.trouble = trouble
            self.until = ENDLESS
            self.serving = False
            self.entered = None
            self.path = folder / "notes" / f"{member}.txt"

        def note(self, kind, step):
            name = threading.current_thread().name
            with self.path.open("a") as file:
                file.write(f"{kind}\t{step}\t{digest(self.state())}\t{name}\n")

        @property
        def last(self):
            return self.until

        def connect(self, plan, network, hooks, notices):
            super().connect(plan, network, hooks, notices)
            self.entered = network.view
            self.until = ENDLESS

        def adopt(self, step, state):
            super().adopt(step, state)
            self.note("adopt", step)

        def follow(self, parts):
            super().follow(parts)
            self.note("follow", self.newest)

        def undo(self):
            super().undo()
            self.note("undo", self.newest)

        def listen(self, listener):
            super().listen(listener)
            self.serving = listener is not None
            if self.serving:
                self.note("serve", self.newest)
                (self.folder / "serving").touch()
            self.trouble(self)

        def iterate(self, step):
            if self.until == ENDLESS and self.ends(self.entered):
                self.until = step + AFTERWARDS
            self.note("iterate", step)
            if self.member == LOST and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            self.trouble(self)
            super().iterate(step)

    return Noting


def survive(folder, make_trainee, ends, trouble=lambda _: None, hooks=lambda _: (), job=JOB, faults=REJOIN):
    """Train until a view has come, though one server is killed; gives the events, and the notes by member.

    Args:
        folder: of the run.
        make_trainee: from a server, and what its events are told to.
        ends: whether training can end some iterations after a view.
        trouble: called before iterations, and when serving begins, with the trainee.
        hooks: of a member's executor, from its trainee.
        job: what is trained.
        faults: what the launcher does: by default, the server gets another life.
    """
    (folder / "notes").mkdir(parents=True)
    plan = make_plan(job, (), Mode(), QUICK)

    def work(member, door):
        torch.set_num_threads(1)  # others' threads would have been lost in the fork
        send = LauncherConnection(door.watch, door.endpoint.token, str(member), os.getpid())

        def survive():
            reporter = FileReporter(
                folder / "events", str(member), "test", lambda content: send(ReportMessage(content))
            )
            trainee = make_trainee(member.server, reporter)
            trainee.prepare(member, folder, ends, trouble)
            plans = Plans(plan, None, lambda failed: make_plan(job, failed, Mode(), QUICK))
            survivor = Survivor(member, job, trainee.trainee, door.endpoint, DURATIONS, plans, reporter, hooks(trainee))
            return TrainingLoop(survivor, trainee).run()

        return run_and_tell(survive, send)

    def serve(member, door):
        return run_agent(member, lambda: work(member, door), door.endpoint.connect, door.endpoint.token, DURATIONS)

    setting = Setting(
        job, View.of(plan), 0, "memory", {}, DURATIONS, "127.0.0.1", Faults(faults), folder, lambda: False
    )
    events = []
    Supervisor(setting, serve, events.append).run()
    return events, {
        Member.parse(path.stem): [
            Note(kind, int(step), digest, thread)
            for kind, step, digest, thread in (line.split("\t") for line in path.read_text().splitlines())
        ]
        for path in Path(folder / "notes").iterdir()
    }
