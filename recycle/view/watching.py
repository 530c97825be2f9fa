"""A run that is going on, as its page gets it: figures, servers, events, and the time line of the last iterations."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from recycle.holding import placed, units_text, with_layout
from recycle.job import Job
from recycle.plan.document import load_plan
from recycle.record.following import OtherRunError, RecordingFollower
from recycle.record.history import Change, History, RunEvent, ViewRecovery
from recycle.record.latest import LatestSpans
from recycle.record.measured import held_memory
from recycle.record.processes import SLACK, Processes
from recycle.record.reading import timeline_of
from recycle.record.recording import (
    PLAN,
    CopyLine,
    DeathLine,
    EndedLine,
    EvaluationLine,
    InstantLine,
    IterationLine,
    Line,
    ProcessLine,
    RunLine,
    SpanLine,
    ViewLine,
)
from recycle.record.timeline import Timeline
from recycle.record.totals import StepTotal, Totals
from recycle.view.amounts import held_text
from recycle.view.copies import KnownCopies, live_by_unit
from recycle.view.history import tell, total_text
from recycle.view.panel import Panel, make_panels
from recycle.view.subject import Subject
from recycle.wording import microseconds, printable, seconds_text

SHOWN = 3
"""Iterations of the time line."""

CURVE = 400
"""Steps of the curves."""


class ServerState(msgspec.Struct, frozen=True):
    """A server and the process that it is, or was.

    Attributes:
        server: which.
        state: ``live``, ``dead``, ``starting``, or ``ended`` with the run.
        pid: of its newest process, if that is known.
        host: where that is.
        step: the last iteration that it finished, from 1; 0 before the first.
        memory: the most that it held for micro-batches in that, and its limit; empty where that is not known.
    """

    server: str
    state: str
    pid: int | None
    host: str
    step: int
    memory: str


class NewsItem(msgspec.Struct, frozen=True):
    """Something that happened.

    Attributes:
        at: when, in words from the run's begin.
        clock: when, as a clock of this machine shows it; empty if the recordings do not say.
        kind: ``failure``, ``leaving``, ``recovery``, ``return``, or ``other``.
        text: what.
        step: the iteration that it came in, from 1; 0 where that is not known.
    """

    at: str
    clock: str
    kind: str
    text: str
    step: int


class StagePlaces(msgspec.Struct, frozen=True):
    """Where a stage's state is, or a chunk's where pipelines differ.

    Attributes:
        what: the stage or the chunk, in words.
        text: in words, where it is.
        last: whether the death of one server loses it.
    """

    what: str
    text: str
    last: bool


class RunState(msgspec.Struct, frozen=True):
    """How a run stands.

    Attributes:
        version: how much has been read; what it does not change with has not changed.
        step: how many iterations are made.
        iterations: how many there are to be; None where that is not known.
        loss: of the last one, which JSON has as null if it is not finite; None before it.
        rate: micro-batches per second in it.
        servers: of the job.
        live: how many of them are in the view.
        steps: the numbers of the iterations of the curves, from 1.
        losses: of each of them.
        rates: of each of them.
        failures: how many servers died.
        left: how many were asked to leave, and left.
        cost: what failures and returns have cost so far, in words; empty before the first.
        events: what happened, the last at the end.
        copies: where the state of each stage is.
        unprotected: whether the store is lost, so that the next death ends the run.
        stuck: how many servers have said in standstills where they are, in all.
        ended: whether no process of the run is left, or no server after its last iteration.
        silent: seconds since any process wrote something.
        since: when that was, as a clock of this machine shows it; empty before the first line.
    """

    version: int
    step: int
    iterations: int | None
    loss: float | None
    rate: float | None
    servers: tuple[ServerState, ...]
    live: int
    steps: tuple[int, ...]
    losses: tuple[float, ...]
    rates: tuple[float, ...]
    failures: int
    left: int
    cost: str
    events: tuple[NewsItem, ...]
    copies: tuple[StagePlaces, ...]
    unprotected: bool
    stuck: int
    ended: bool
    silent: float
    since: str


class WatchedRun:
    """Puts together what the processes of a run write, whenever it is asked how the run stands.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._version = 0
        self._begin()

    def _begin(self) -> None:
        self._follower = RecordingFollower(self.folder)
        self._first = math.inf
        self._history = History()
        self._totals = Totals(self._take)
        self._copies = KnownCopies()
        self._steps: dict[int, StepTotal] = {}
        self._processes = Processes()
        self._finished: dict[str, IterationLine] = {}
        # What servers have said in their present lives.
        self._unprotected: set[str] = set()
        self._stuck = 0
        self._head: RunLine | None = None
        self._spans = LatestSpans[SpanLine](SHOWN)
        self._others: list[Line] = []
        self._waiting: list[Line] = []
        self._known: Job | None = None
        self._zeros: list[float] = []

    def look(self) -> None:
        """Take in what was written since the last time. Another run in the folder is followed from its begin.

        Raises:
            UserError: a recording cannot be read.
        """
        try:
            for come in self._follower.pieces():
                self._take_all(come)
            self._totals.skip()
        except OtherRunError:
            self._begin()
            self._version += 1
            self.look()

    def _take_all(self, come: Sequence[Line]) -> None:
        lines = [*self._waiting, *come]
        self._version += len(lines) - len(self._waiting)
        # The first view comes before all that is counted in it, in whichever file it stands.
        views = [line for line in lines if isinstance(line, ViewLine)]
        for view in sorted(views, key=lambda view: view.epoch):
            self._first = min(self._first, view.time)
            self._totals.add(view)
            self._history.add(view)
        if views:
            self._steps = {step: total for step, total in self._steps.items() if step < self._totals.next}
        self._waiting = []
        self._copies.add(line for line in lines if isinstance(line, CopyLine))
        for line in lines:
            self._take_in(line)
            self._note(line)

    def state(self) -> RunState:
        """How the run stands, as of the last look."""
        made = [total for _, total in sorted(self._steps.items())][-CURVE:]
        newest = made[-1] if made else None
        job = self._job()
        rates = tuple(total.rate(job) for total in made)
        history = self._history
        view, ended = history.view, self._has_ended()
        servers = self._servers(ended)
        return RunState(
            self._version,
            newest.step + 1 if newest else 0,
            self._iterations(),
            newest.loss if newest else None,
            rates[-1] if rates else None,
            servers,
            len(view.servers) if view else 0,
            tuple(total.step + 1 for total in made),
            tuple(total.loss for total in made),
            rates,
            sum(not each.left for each in history.deaths),
            sum(each.left for each in history.deaths),
            total_text(history.costs, history.time_unit) if history.costs.change else "",
            self._events(),
            self._places(),
            any(each.server in self._unprotected for each in servers if each.state == "live"),
            self._stuck,
            ended,
            max(0.0, time.time() - self._follower.heard) if self._follower.heard else 0.0,
            _date(heard) if (heard := self._follower.heard) else "",
        )

    def panel(self) -> Panel:
        """The last iterations, laid out; nothing before there is a recording."""
        job = self._job() if self._head else None
        spans = [*self._spans]
        name = printable(self.folder.name)
        line = Timeline(name, "us", "measured", (), (), ())
        if self._head is not None and spans:
            line = timeline_of([self._head, *self._others, *spans]).last(SHOWN)
            # A recording's title says which of its processes wrote it.
            line = msgspec.structs.replace(line, title=name)
            if job is not None:
                line = msgspec.structs.replace(line, samples=held_memory(line, job))
        [panel] = make_panels([Subject(name, None, line, job=job)], "stage")
        if not spans:
            return panel
        # Times of the log count from the run's begin, and those of the time line from its own.
        fact = ("from", f"{seconds_text(self._seconds(line.origin))} after the run's begin")
        chart = msgspec.structs.replace(panel.chart, facts=(*panel.chart.facts, fact))
        return msgspec.structs.replace(panel, chart=chart)

    def _events(self) -> tuple[NewsItem, ...]:
        timed = self._history.timed
        steps = {event.view.epoch: event.view.step for _, event in timed if isinstance(event, Change)}
        return tuple(self._news(moment, event, steps) for moment, event in timed)

    def _news(self, moment: float, event: RunEvent, steps: Mapping[int, int]) -> NewsItem:
        """What is told of an event; ``steps`` has the iteration with which each view but the first begins."""
        history, kind, step = self._history, "other", 0
        match event:
            case DeathLine():
                kind = "leaving" if event.left else "failure"
                step = steps.get(event.epoch, -1) + 1
            case Change():
                kind, step = ("recovery" if event.deaths else "return"), event.view.step + 1
            case ViewRecovery():
                kind, step = "recovery", event.step + 1
            case _:
                pass
        unit = microseconds(history.time_unit) / 1e6
        text = tell(event, history.servers, history.time_unit)
        return NewsItem(seconds_text(self._seconds(moment)), self._clock(moment * unit), kind, text, step)

    def _seconds(self, moment: float) -> float:
        """How long after the run's begin a time of the recordings is."""
        return max(0.0, (moment - min(self._first, moment)) * microseconds(self._history.time_unit) / 1e6)

    def _clock(self, seconds: float) -> str:
        """What a clock of this machine shows at a time of the recordings; nothing if they do not agree on that."""
        if not self._zeros or max(self._zeros) - min(self._zeros) > SLACK:
            return ""
        return _date(self._zeros[0] + seconds)

    def _has_ended(self) -> bool:
        """Whether all processes are gone that trained last, and before the last iteration the launcher too."""
        processes = list(self._processes.all())
        if (view := self._history.view) is not None:
            is_made = self._steps and max(self._steps) + 1 == self._iterations()
            names = view.servers if is_made else [*view.servers, "launcher"]
            processes = [each for each in map(self._processes.of, names) if each is not None]
        return bool(processes) and all(self._processes.is_gone(each, self._follower.heard) for each in processes)

    def _take_in(self, line: Line) -> None:
        match line:
            case RunLine():
                self._head = self._head or line
                self._history.add(line)
            case ProcessLine():
                self._processes.add(line)
                if line.zero is not None:
                    self._zeros.append(line.zero + line.ahead * microseconds(self._history.time_unit) / 1e6)
            case EndedLine():
                self._processes.add(line)
            case SpanLine():
                self._spans.add(line)
            case CopyLine():
                pass
            case ViewLine():
                self._others.append(line)
            case IterationLine() | EvaluationLine() if self._history.view is None:
                self._waiting.append(line)
            case _:
                if isinstance(line, IterationLine):
                    known = self._finished.get(line.server, line)
                    newer = (line.epoch, line.step) >= (known.epoch, known.step)
                    self._finished[line.server] = line if newer else known
                else:
                    self._others.append(line)
                self._totals.add(line)
                self._history.add(line)

    def _note(self, line: Line) -> None:
        match line:
            case InstantLine(kind="unprotected", server=str(server)):
                self._unprotected.add(server)
            case InstantLine(kind="protected", server=str(server)):
                self._unprotected.discard(server)
            case InstantLine(kind="standstill"):
                self._stuck += 1
            case ProcessLine():
                self._unprotected.discard(line.name.partition("#")[0])
            case _:
                pass

    def _take(self, total: StepTotal) -> None:
        if not total.held_out:
            self._steps[total.step] = total

    def _servers(self, ended: bool) -> tuple[ServerState, ...]:
        job, view, deaths = self._job(), self._history.view, self._history.deaths
        names = [str(server) for server in job.servers()] if job else list(view.servers if view else ())
        limits = {str(server): placed(job, server).limit for server in job.servers()} if job else {}
        dead = {death.server for death in deaths if view is None or death.epoch > view.epoch}
        states = []
        for name in names:
            if name in dead or (view is not None and name not in view.servers):
                state = "dead"
            else:
                state = "starting" if view is None else "live"
            process = self._processes.of(name)
            if state != "dead" and process is not None and self._processes.is_gone(process, self._follower.heard):
                state = "ended" if ended else "dead"
            pid, host = (process.pid, process.host) if process else (None, "")
            done = self._finished.get(name)
            held = held_text(done.peak_memory, limits[name], job.memory_unit) if job and done else ""
            states.append(ServerState(name, state, pid, host, done.step + 1 if done else 0, held))
        return tuple(states)

    def _places(self) -> tuple[StagePlaces, ...]:
        job, view = self._job(), self._history.view
        if job is None or view is None:
            return ()
        live = live_by_unit(with_layout(job, view.layout), view.servers)
        found = self._copies.stages(live)
        return tuple(StagePlaces(units_text(job, [each.stage]), each.text, each.is_last) for each in found)

    def _iterations(self) -> int | None:
        """How many there are to be, by the newest process: a run that goes on may have others than before."""
        known = [each for each in self._processes.all() if each.iterations is not None]
        return max(known, key=lambda each: each.time or 0.0).iterations if known else None

    def _job(self) -> Job | None:
        # A plan is long, and its job never changes.
        path = self.folder / PLAN
        if self._known is None and path.exists():
            self._known = load_plan(path).job
        return self._known


def _date(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
