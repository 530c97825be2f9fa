"""Runs of emulated servers: every process, signal, connection and message is real, and only the compute is slept."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch

from harness.emulated_server import Emulated, EmulatedServer
from harness.examples import QUICK, paper_job
from harness.plain_lines import require_plain
from harness.processes import is_running, send_signal
from harness.started import wait_until
from recycle.control.host.agent import DONE, run_agent
from recycle.control.membership.durations import Durations
from recycle.control.membership.events import Event as MachineEvent
from recycle.control.membership.messages import Verdict
from recycle.control.membership.view import Member, View
from recycle.errors import UserError
from recycle.faults.fired import FiredFile, FiredLine, load_fired
from recycle.faults.menu import Fault, Faults
from recycle.job import Server
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan
from recycle.planner.make import make_plan
from recycle.record.recording import DeathLine, InstantLine, IterationLine, RecoveryLine, ViewLine
from recycle.record.reporting import Event, FileReporter, Reporter
from recycle.runtime.execute.injection import Injector
from recycle.runtime.launch.process.messages import ReportMessage, run_and_tell
from recycle.runtime.launch.process.report_channel import LauncherConnection
from recycle.runtime.launch.supervise.setting import RunAccess, Setting
from recycle.runtime.launch.supervise.supervisor import FIRED, Supervisor
from recycle.runtime.recover.plans import Plans
from recycle.runtime.recover.rebuilding import Rebuilding
from recycle.runtime.recover.survivor import Survivor
from recycle.runtime.recover.training_loop import TrainingLoop

JOB = paper_job(pipelines=3, stages=2, micro_batches=2, released=0)
STAGGERED, GLOBAL = Mode(), Mode("fused", "global")
EVERYBODY = tuple(map(str, JOB.servers()))
# What is waited for is never a measure of success. Agents tell of the dead at once, so that nothing waits for these: a
# busy machine makes nobody else look dead, and a lost store does not come back before the end of a test.
DURATIONS = Durations(beat=0.25, silence=20.0, hang=20.0, rebuild=20.0, answer=60.0, transfer=120.0)
IMPATIENT = Durations(beat=0.25, silence=6.0, hang=6.0, rebuild=20.0, answer=30.0, transfer=60.0)
"""Where a silence or the store's return is waited for."""

SLOT = 0.001
ENOUGH = "enough"
MOST = 5000
"""Iterations after which an open-ended run ends though what it waits for has not happened."""

Until = Callable[[Event], bool]


class Doom(NamedTuple):
    """A kill at a place in the life of a worker that no instruction has.

    Attributes:
        member: who is killed.
        place: before what: a method of the trainee, ``between`` with its step, ``start`` of the process, ``make`` of a
            plan by who leads, or ``rebuild`` of the groups.
        epoch: of the last view that the worker was in; -1 before the first.
    """

    member: str
    place: str
    epoch: int

    def __str__(self) -> str:
        return f"{self.member} {self.place}"


class Result(NamedTuple):
    """What a run left.

    Attributes:
        events: in the order in which the launcher heard them.
        fired: the faults that fired.
        error: why the run did not keep its promise; empty if it did.
        ends: how each worker that ended by itself did: its status, and the version that it held.
        folder: of the run.
    """

    events: list[Event]
    fired: tuple[FiredLine, ...]
    error: str
    ends: dict[str, tuple[int, int]]
    folder: Path

    def of(self, kind: type) -> list:
        return [each for each in self.events if isinstance(each, kind)]

    def texts(self, kind: str) -> list[str]:
        return [each.text for each in self.of(InstantLine) if each.kind == kind]

    @property
    def views(self) -> list[ViewLine]:
        """One for each epoch."""
        return list({each.epoch: each for each in self.of(ViewLine)}.values())

    @property
    def deaths(self) -> dict[str, DeathLine]:
        return {f"{each.server}#{each.incarnation}": each for each in self.of(DeathLine)}

    @property
    def recoveries(self) -> list[RecoveryLine]:
        return self.of(RecoveryLine)

    @property
    def story(self) -> str:
        """What happened, for who looks into a test that failed."""
        told = [str(each) for each in self.events if not isinstance(each, IterationLine)]
        return "\n".join([f"error: {self.error}", f"ends: {self.ends}", *told])

    def require_fired(self, *faults: Fault) -> None:
        """Each fired, and was told."""
        assert sorted(each.fault for each in self.fired) == sorted(map(str, faults)), self.story
        assert sorted(self.texts("fault")) == sorted(map(str, faults)), self.story

    def require_doomed(self, *dooms: Doom) -> None:
        """Each came to its place."""
        found = sorted(path.name for path in self.folder.glob("doomed/*"))
        assert found == sorted(map(str, dooms))

    def require_kept(self, *survivors: str, iterations: int | None = None) -> None:
        """Exactly these members came to the end; no iteration was skipped, and none was counted twice."""
        assert self.error == "", self.story
        steps = {each.step for each in self.of(IterationLine)}
        iterations = iterations or len(steps)
        assert steps == set(range(iterations)), self.story
        done = {name: end for name, end in self.ends.items() if end[0] == DONE}
        assert done == dict.fromkeys(survivors, (DONE, iterations)), self.story
        views = {each.epoch: each for each in self.of(ViewLine)}
        for server in {each.server for each in self.of(IterationLine)}:
            told = [each for each in self.of(IterationLine) if each.server == server]
            for before, after in pairwise(told):
                # In a view an iteration follows the other; a new view begins where it says.
                same = before.epoch == after.epoch
                assert after.step == (before.step + 1 if same else views[after.epoch].step), f"{before}, {after}"


def lives(*dead: str, **others: int) -> list[str]:
    """The members who are left without some servers; others are in another than their first life."""
    return [f"{each}#{others.get(each, 0)}" for each in EVERYBODY if each not in dead]


def settled(*dead: str, epoch: int = 1) -> Until:
    """Training goes on in a view, of this epoch or a later one, in which all servers are but these."""
    latest: list[ViewLine] = []
    alive = [each for each in EVERYBODY if each not in dead]

    def is_settled(event: Event) -> bool:
        if isinstance(event, ViewLine) and (not latest or event.epoch > latest[-1].epoch):
            latest.append(event)
        if not isinstance(event, IterationLine) or not latest:
            return False
        view = latest[-1]
        return view.epoch >= epoch and view.servers == alive and event.epoch == view.epoch and event.step > view.step

    return is_settled


def never(_: Event) -> bool:
    """The run does not end by itself."""
    return False


class ScenarioServer(EmulatedServer):
    """An emulated server that can be doomed, and whose run can be ended from outside when something has happened.

    Args:
        emulated: see EmulatedServer.
        member: whose it is.
        reporter: see EmulatedServer.
        scenario: what happens.
    """

    def __init__(self, emulated: Emulated, member: Member, reporter: Reporter, scenario: "Scenario") -> None:
        super().__init__(emulated, member.server, reporter)
        self.epoch = -1
        self._member = member
        self._scenario = scenario
        self._folder = scenario.folder
        self._enough = False

    def meet(self, place: str) -> None:
        if Doom(str(self._member), place, self.epoch) in self._scenario.dooms:
            (self._folder / "doomed").mkdir(exist_ok=True)
            (self._folder / "doomed" / f"{self._member} {place}").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def last(self):
        return self.newest if self._enough else super().last

    def drop(self):
        self.meet("drop")
        super().drop()

    def undo(self):
        self.meet("undo")
        super().undo()

    def state(self):
        self.meet("state")
        return super().state()

    def adopt(self, step, state):
        self.meet("adopt")
        super().adopt(step, state)

    def connect(self, plan, network, hooks, notices):
        self.epoch = network.view.epoch
        self.network = network
        self.meet("connect")
        super().connect(plan, network, hooks, notices)

    def between(self, step, *, save, settle):
        self.meet(f"between {step}")
        super().between(step, save=save, settle=settle)
        if step == 2 and self._scenario.busy == str(self._member):
            time.sleep(1.25 * self._scenario.durations.silence)
        if self._scenario.until is not None:
            # All find it at the same boundary.
            votes = torch.tensor([float((self._folder / ENOUGH).exists())])
            self.network.all.sum(votes)
            self._enough = bool(votes)


class Once:
    """Does something at the first event that is meant."""

    def __init__(self, meant, act):
        self.meant = meant
        self.act = act
        self.done = False

    def __call__(self, event):
        if not self.done and self.meant(event):
            self.done = True
            self.act()


class Scenario:
    """A run to be.

    Args:
        folder: of the run.
        faults: what goes wrong.
        iterations: where it ends, if it is not open-ended.
        mode: of its plans.
        dooms: kills outside of instructions.
        until: says, of each event, whether the run may end at the next boundary after it.
        on_event: called with every event, and what ends a worker or does something else to it.
        durations: of the run.
        busy: a member that once has to do something for longer than the silence that means death.
        late: seconds that members need until they are ready to begin.
    """

    def __init__(
        self,
        folder: Path,
        *faults: Fault,
        iterations: int = 12,
        mode: Mode = STAGGERED,
        dooms: Sequence[Doom] = (),
        until: Until | None = None,
        on_event: Callable[[Event], None] = lambda _: None,
        durations: Durations = DURATIONS,
        busy: str = "",
        late: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.folder = folder
        self.given = faults
        self.faults = Faults(faults)
        self.iterations = iterations if until is None else MOST
        self.mode = mode
        self.dooms = dooms
        self.until = until
        self.on_event = on_event
        self.durations = durations
        self.busy = busy
        self.late = late
        self.plan: Plan = make_plan(JOB, (), mode, QUICK)

    def run(self) -> Result:
        """Run it to its end."""
        setting = Setting(
            job=JOB,
            view=View.of(self.plan),
            step=0,
            restore="memory",
            fingerprint={},
            durations=self.durations,
            host="127.0.0.1",
            faults=self.faults,
            folder=self.folder,
            durable=lambda: False,
        )
        events: list[Event] = []

        def watch(event: Event) -> None:
            events.append(event)
            self.on_event(event)
            if self.until is not None and self.until(event):
                (self.folder / ENOUGH).touch()

        error = ""
        try:
            Supervisor(setting, self._serve, watch).run()
        except UserError as raised:
            error = str(raised)
        self._require_nobody_left()
        require_plain(error, *map(str, events))
        return self._result(events, error)

    def survive(self, *survivors: str) -> Result:
        """Run it: all that is to go wrong does, and these members come to the end; see Result.require_kept."""
        result = self.run()
        result.require_fired(*self.given)
        result.require_doomed(*self.dooms)
        result.require_kept(*survivors, iterations=self.iterations if self.until is None else None)
        return result

    def signal(self, member: str, number: int) -> None:
        """Send a signal to a worker."""
        send_signal(int((self.folder / "workers" / member).read_text()), number)

    def _result(self, events: list[Event], error: str) -> Result:
        ends = {}
        for path in self.folder.glob("ends/*"):
            status, version = path.read_text().split()
            ends[path.name] = (int(status), int(version))
        path = self.folder / FIRED
        return Result(events, load_fired(path), error, ends, self.folder)

    def _require_nobody_left(self) -> None:
        """All processes of the run are gone, soon if not at once."""
        workers = [int(path.read_text()) for path in self.folder.glob("workers/*")]
        wait_until(lambda: not any(map(is_running, workers)))

    def _serve(self, member: Member, door: RunAccess) -> int:
        work = partial(self._work, member, door)
        return run_agent(member, work, door.endpoint.connect, door.endpoint.token, self.durations)

    def _work(self, member: Member, door: RunAccess) -> int:
        torch.set_num_threads(1)
        (self.folder / "workers").mkdir(exist_ok=True)
        (self.folder / "workers" / str(member)).write_text(str(os.getpid()))
        send = LauncherConnection(door.watch, door.endpoint.token, str(member), os.getpid())

        def survive() -> int:
            reporter = FileReporter(
                self.folder / "events", str(member), "emulated", lambda content: send(ReportMessage(content))
            )
            emulated = Emulated(JOB, self.mode.optimizer == "staggered", SLOT, self.iterations)
            trainee = ScenarioServer(emulated, member, reporter, self)
            fired = FiredFile(self.folder / FIRED, print, member.server, member.incarnation)

            def tell(fault: Fault, time_ns: int) -> None:
                fired.write(fault, time_ns)
                reporter.tell(InstantLine("fault", time_ns / 1000, str(member.server), str(fault)))

            mine = self.faults.of_worker(member.server, member.incarnation)
            ports = door.ports

            def make(failed: Sequence[Server]) -> Plan:
                trainee.meet("make")
                return make_plan(JOB, failed, self.mode, QUICK)

            rebuild = Rebuilding.rebuild

            def meet_and_rebuild(rebuilding: Rebuilding, verdict: Verdict) -> list[MachineEvent]:
                trainee.meet("rebuild")
                return rebuild(rebuilding, verdict)

            # In this process, which is this worker's alone.
            Rebuilding.rebuild = meet_and_rebuild
            survivor = Survivor(
                member,
                JOB,
                trainee.trainee,
                door.endpoint,
                self.durations,
                Plans(self.plan, None, make),
                reporter,
                [Injector(mine, tell, lambda: (), ports)],
            )
            trainee.meet("start")
            time.sleep(self.late.get(str(member), 0.0))
            status = TrainingLoop(survivor, trainee).run()
            (self.folder / "ends").mkdir(exist_ok=True)
            (self.folder / "ends" / str(member)).write_text(f"{status} {trainee.newest}")
            return status

        return run_and_tell(survive, send)
