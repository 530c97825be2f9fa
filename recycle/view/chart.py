"""The chart: what every view draws, in the order in which it draws it. Views add only form."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Literal

import msgspec

from recycle.holding import holders, longest_update, placed
from recycle.job import Job, Server
from recycle.plan.instruction import Instruction, Op
from recycle.record.recording import RecoveryLine
from recycle.record.timeline import Outage, Span, Timeline
from recycle.view.subject import Subject
from recycle.wording import printable, time_text

MOST_PEERS = 6
"""Of more peers than this it is not said who executes what."""

STEPS = ("agree", "rebuild", "restore", "start")
"""What a server does on its way into a new view."""

Grouping = Literal["stage", "pipeline"]


class Row(msgspec.Struct, frozen=True):
    """One server.

    Attributes:
        server: who it is.
        role: the server it acts as; itself unless the plan gives it another's role.
        pipeline: the one that it computes in.
        dead: whether it has failed, and not come back.
        outages: when it was dead; of a plan, all the time.
        recoveries: its ways into a new view, by time.
        spans: its compute, by start.
        transfers: its transfers that take time, by start.
        busy: time it computes and updates, per iteration; without what was in vain.
        bubble: the share of the time in which it does neither, and computes nothing in vain either: of a plan's period,
            or of all that is drawn of a run.
        peak: the most memory it holds for activations; None if that was not recorded.
        limit: what it may hold; None for a run whose job is not known.
        actor: who has its role, if that is another server.
        moved: of a dead server, the micro-batches that each peer executes because of it.
        void: by its place among the spans, what was computed in vain: in an iteration that was made again.
        unrecorded: when it worked at what died with it, from its last span to each of its deaths.
        wasted: for how long it worked in vain, in both ways.
    """

    server: Server
    role: Server
    pipeline: int
    dead: bool
    spans: tuple[Span, ...]
    transfers: tuple[Span, ...]
    busy: float
    bubble: float
    peak: int | None
    limit: int | None
    actor: Server | None
    moved: Mapping[Server, tuple[str, ...]]
    outages: tuple[Outage, ...] = ()
    recoveries: tuple[RecoveryLine, ...] = ()
    void: frozenset[int] = frozenset()
    unrecorded: tuple[tuple[float, float], ...] = ()
    wasted: float = 0.0

    @property
    def label(self) -> str:
        """The server's name, and whose role it has."""
        return str(self.server) if self.role == self.server else f"{self.server} as {self.role}"

    def rerouted(self, instruction: Instruction) -> bool:
        """Whether the micro-batch is at home on another pipeline."""
        return instruction.home >= 0 and instruction.home != self.pipeline


class ViewChange(msgspec.Struct, frozen=True):
    """A new view.

    Attributes:
        time: when it began.
        name: its number in words.
        text: who is in it, and why.
    """

    time: float
    name: str
    text: str


class RowGroup(msgspec.Struct, frozen=True):
    """Rows that stand together: those of one stage, or of one pipeline."""

    name: str
    rows: tuple[Row, ...]


class Window(msgspec.Struct, frozen=True):
    """From a stage's first start to the end of its optimizer step, in one iteration."""

    stage: int
    iteration: int
    start: float
    step: float
    end: float


class Chart(msgspec.Struct, frozen=True):
    """A subject laid out for drawing.

    Attributes:
        title: what is shown.
        facts: names and values of what one wants to know first, the most important first.
        grouping: how the rows are grouped.
        groups: the rows in order.
        windows: by iteration and stage.
        views: the changes of views, by time.
        end: when everything has ended.
        period: time per iteration.
        barrier: whether all stages step behind one barrier.
        time_unit: what one unit of time is.
        memory_unit: what one unit of memory is.
        first: the number of its first iteration.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    grouping: Grouping
    groups: tuple[RowGroup, ...]
    windows: tuple[Window, ...]
    end: float
    period: float
    barrier: bool
    time_unit: str
    memory_unit: str
    views: tuple[ViewChange, ...] = ()
    first: int = 0

    def caption(self, window: Window) -> str:
        """How long a window is, and of which iteration where there are several."""
        length = time_text(window.end - window.start, self.time_unit)
        several = any(each.iteration for each in self.windows)
        return f"iteration {window.iteration + self.first + 1}: {length}" if several else length

    def rows(self) -> Iterator[Row]:
        """All rows, from the top."""
        for group in self.groups:
            yield from group.rows

    @property
    def ops(self) -> list[Op]:
        """Those of which a box is drawn, in their order."""
        seen = {span.instruction.op for row in self.rows() for span in row.spans if span.end > span.start}
        return [op for op in Op if op in seen]


def make_chart(subject: Subject, grouping: Grouping = "stage") -> Chart:
    """Lay out a subject.

    Args:
        subject: what to draw.
        grouping: what rows stand together.
    """
    plan, timeline = subject.plan, subject.timeline
    job = plan.job if plan else subject.job
    windows = stage_windows(timeline)
    barrier = plan is not None and plan.mode.optimizer == "global"
    period = measured_period(windows) if timeline.period is None else timeline.period
    rows = _rows(subject, timeline, period)
    key = attrgetter(f"server.{grouping}")
    rows.sort(key=lambda row: (key(row), row.server))
    return Chart(
        title=printable(timeline.title),
        facts=_facts(subject, timeline, period, rows),
        grouping=grouping,
        groups=tuple(RowGroup(f"{grouping} {value}", tuple(members)) for value, members in groupby(rows, key)),
        windows=windows,
        end=timeline.end,
        period=period,
        barrier=barrier,
        time_unit=printable(timeline.time_unit),
        memory_unit=printable(job.memory_unit) if job else "unit",
        views=tuple(
            ViewChange(each.time, printable(each.text).partition(":")[0], printable(each.text))
            for each in timeline.instants
            if each.kind == "view change"
        ),
        first=timeline.first,
    )


def stage_windows(timeline: Timeline) -> tuple[Window, ...]:
    """When each stage begins and ends each iteration; of one that was made again, the last time."""
    begin: dict[tuple[int, int], float] = {}
    step: dict[tuple[int, int], float] = {}
    end: dict[tuple[int, int], float] = {}
    void = timeline.void
    for span in timeline.spans:
        if span.lane != "compute" or void.has(span):
            continue
        key = (span.iteration, span.server.stage)
        if span.instruction.op.is_compute:
            begin[key] = min(begin.get(key, span.start), span.start)
        elif span.instruction.op.is_update:
            step[key] = min(step.get(key, span.start), span.start)
        end[key] = max(end.get(key, span.end), span.end)
    return tuple(
        Window(stage, iteration, begin[iteration, stage], step.get((iteration, stage), stop), stop)
        for (iteration, stage), stop in sorted(end.items())
        if (iteration, stage) in begin
    )


def measured_period(windows: tuple[Window, ...]) -> float:
    """Time per iteration: the mean time between a stage's ends, or the longest window where there is one iteration."""
    ends: dict[int, list[float]] = {}
    for window in windows:
        ends.setdefault(window.stage, []).append(window.end)
    steady = [(max(times) - min(times)) / (len(times) - 1) for times in ends.values() if len(times) > 1]
    return max(steady) if steady else max((window.end - window.start for window in windows), default=0.0)


def share(value: float) -> str:
    """A share as a percentage."""
    return f"{value:.1%}".replace(".0%", "%")


def whereabouts(row: Row, outage: Outage) -> str:
    """What is said of a dead server: what became of its work, or, if it died on the way, how it died."""
    return fate(row) if outage.start == -math.inf else outage.text


def steps(recovery: RecoveryLine) -> Iterator[tuple[str, float, float]]:
    """What a server does on its way into a new view: the name of each step, its start and its end."""
    marks = (recovery.noticed, recovery.agreed, recovery.rebuilt, recovery.restored, recovery.resumed)
    for name, (start, end) in zip(STEPS, pairwise(marks), strict=True):
        yield name, start, end


def phases(recovery: RecoveryLine, unit: str) -> str:
    """What a server does on its way into a new view, with how long that takes."""
    parts = ", ".join(f"{name} {time_text(end - start, unit)}" for name, start, end in steps(recovery))
    return f"into view {recovery.epoch} in {time_text(recovery.resumed - recovery.noticed, unit)}: {parts}"


def fate(row: Row) -> str:
    """What became of a dead server's work."""
    parts = [f"{row.actor} acts as it"] if row.actor else []
    if len(row.moved) <= MOST_PEERS:
        parts += [f"{' '.join(units)} on {server}" for server, units in row.moved.items()]
    else:
        parts.append(f"{sum(map(len, row.moved.values()))} micro-batches on {len(row.moved)} peers")
    return f"dead: {'; '.join(parts)}" if parts else "dead"


def _rows(subject: Subject, timeline: Timeline, period: float) -> list[Row]:
    plan = subject.plan
    job = plan.job if plan else subject.job
    spans: dict[Server, list[Span]] = {}
    transfers: dict[Server, list[Span]] = {}
    for span in timeline.spans:
        if span.lane == "compute":
            spans.setdefault(span.server, []).append(span)
        elif span.end > span.start:
            transfers.setdefault(span.server, []).append(span)
    peak = dict.fromkeys(map(str, plan.programs), 0) if plan else {}
    for sample in timeline.samples:
        if sample.memory > peak.get(sample.server, -1):
            peak[sample.server] = sample.memory
    outages = timeline.outages
    failed = set(plan.dead if plan else timeline.failed)
    servers = set(plan.job.servers()) if plan else outages.keys() | spans.keys()
    recoveries: dict[str, list[RecoveryLine]] = {}
    for recovery in timeline.recoveries:
        recoveries.setdefault(recovery.server, []).append(recovery)
    roles = plan.roles if plan else {}
    moved = _moved(job, roles, failed, spans)
    actors = {role: server for server, role in roles.items()}
    iterations = max(1, timeline.iterations)
    # A run's first iterations are longer than its period.
    begin = min((span.start for span in timeline.spans), default=0.0)
    whole = timeline.end - begin if timeline.period is None else iterations * period
    limits = {server: placed(job, server).limit for server in job.servers()} if job else {}
    computing = {server: job.pipeline_of(server) for server in job.servers()} if job else {}
    in_vain = timeline.void
    rows = []
    for server in servers:
        mine = spans.get(server, [])
        void = frozenset(place for place, span in enumerate(mine) if in_vain.has(span))
        shown = tuple(_shown(each, mine) for each in outages.get(server, ()))
        unrecorded = tuple(_unrecorded(mine, shown))
        busy = sum(span.end - span.start for place, span in enumerate(mine) if place not in void)
        wasted = sum(mine[place].end - mine[place].start for place in void)
        wasted += sum(end - start for start, end in unrecorded)
        rows.append(
            Row(
                server=server,
                role=(role := roles.get(server, server)),
                pipeline=computing.get(role, role.pipeline),
                dead=server in failed,
                spans=tuple(mine),
                transfers=tuple(transfers.get(server, ())),
                busy=busy / iterations,
                bubble=1 - (busy + wasted) / whole if whole else 0.0,
                peak=peak.get(str(server)),
                limit=limits.get(server),
                actor=actors.get(server),
                moved=moved.get(server, {}),
                outages=shown,
                recoveries=tuple(recoveries.get(str(server), ())),
                void=void,
                unrecorded=unrecorded,
                wasted=wasted,
            )
        )
    return rows


def _shown(outage: Outage, spans: Sequence[Span]) -> Outage:
    """An outage as it is drawn: who did nothing before it is dead from the start."""
    start = outage.start if spans and spans[0].start < outage.start else -math.inf
    return Outage(start, outage.end, printable(outage.text))


def _unrecorded(spans: Sequence[Span], outages: Sequence[Outage]) -> Iterator[tuple[float, float]]:
    """From the last span before each death to the death: what was computed there died before it was written."""
    ends = [span.end for span in spans]
    for outage in outages:
        before = bisect_right(ends, outage.start)
        if before and outage.start > ends[before - 1]:
            yield ends[before - 1], outage.start


def _moved(
    job: Job | None, roles: Mapping[Server, Server], failed: set[Server], spans: Mapping[Server, list[Span]]
) -> dict[Server, dict[Server, tuple[str, ...]]]:
    """Per dead server: the micro-batches that are at home on nobody because of it, by who executes them.

    Where a peer acts as the dead server, it is the peer's own role that nobody has.
    """
    held = {roles.get(server, server) for server in spans}
    chunks = enumerate(holders(job) if job else ())
    homes = {(chunk, pipeline): home for chunk, held_by in chunks for pipeline, home in held_by.items()}
    found: dict[Server, dict[Server, list[tuple[int, int]]]] = {}
    for server in sorted(spans):
        for span in spans[server]:
            instruction = span.instruction
            dead = home = homes.get((instruction.stage, instruction.home), Server(instruction.home, server.stage))
            if instruction.op is not Op.F or span.iteration or home in held:
                continue
            passed = set()
            while dead not in failed and dead in roles and dead not in passed:
                passed.add(dead)
                dead = roles[dead]
            if dead in failed:
                found.setdefault(dead, {}).setdefault(server, []).append((instruction.home, instruction.micro_batch))
    return {
        dead: {
            server: tuple(
                str(number) if home == dead.pipeline else f"{home}.{number}" for home, number in sorted(set(units))
            )
            for server, units in places.items()
        }
        for dead, places in found.items()
    }


def _facts(subject: Subject, timeline: Timeline, period: float, rows: list[Row]) -> tuple[tuple[str, str], ...]:
    plan = subject.plan
    if plan is None and not timeline.iterations:
        return ()
    live = [row for row in rows if not row.dead]
    bubble = sum(row.bubble for row in live) / len(live) if live else 0.0
    facts = [("period", time_text(period, timeline.time_unit))]
    if plan is None:
        last = timeline.first + timeline.iterations
        facts.append(("iterations", f"{timeline.first + 1} to {last}" if timeline.first else str(last)))
    else:
        if plan.mode.optimizer == "global":
            unit, update = timeline.time_unit, longest_update(plan.job, plan.dead)
            facts[0] = (
                "period",
                f"{time_text(period, unit)} = {time_text(period - update, unit)} + {time_text(update, unit)} optimizer",
            )
        gap = period / plan.bound - 1 if plan.bound else 0.0
        facts.append(("bound", f"{time_text(plan.bound, timeline.time_unit)} ({printable(plan.provenance.bound_by)})"))
        facts.append(("gap", share(gap)))
        throughput = share(plan.baseline / period if period else 1.0)
        facts.append(("throughput", f"{throughput} of {plan.job.baseline_name}"))
    facts.append(("bubble", share(bubble)))
    if wasted := sum(row.wasted for row in rows):
        facts.append(("void work", f"{time_text(wasted, timeline.time_unit)} of all servers together"))
    failed = [row.server for row in rows if row.dead]
    facts.append(("dead", ", ".join(map(str, sorted(failed))) or "none"))
    return tuple(facts)
