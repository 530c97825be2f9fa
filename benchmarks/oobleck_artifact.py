"""The event rules of the simulator in Oobleck's artifact, which made its Table 2, to compute its rows again.

Its rules are not ours, and some are accidents that the published figures depend on: training goes on during a
rendezvous if an iteration ends before it, time of a redone iteration counts as effective, and which of two events of
one millisecond comes first is up to the heap. All times are whole milliseconds.
"""

import enum
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from recycle.study.constants import BAMBOO_RENDEZVOUS, Measured

START = 45_000
"""From a node's arrival until it is ready."""

MOST = 30
STAGES = 12
BAMBOO_REDUNDANT = 1 - 0.1971
FALLBACK_SLOWDOWN = 1.5
NO_PROGRESS = 10**12

VARUNA_ITERATIONS = 10
"""Iterations between Varuna's checkpoints."""


class RemovalTrace(msgspec.Struct, frozen=True):
    """Thirty nodes that are lost one by one.

    Attributes:
        every: between two losses.
        removed: the numbers of the nodes, from 1 on.
    """

    every: int
    removed: tuple[int, ...]


TRACES = {
    "6h": RemovalTrace(21_600_000, (10, 14, 4, 16, 7, 28, 22, 17, 21, 26, 6, 24, 29, 25, 19)),
    "1h": RemovalTrace(3_600_000, (21, 15, 14, 17, 19, 11, 3, 13, 2, 26, 4, 8, 16, 7, 18)),
    "10m": RemovalTrace(601_200, (5, 21, 20, 15, 1, 17, 30, 28, 22, 16, 23, 12, 13, 25, 9)),
}


class SystemResult(msgspec.Struct, frozen=True):
    """What a system made of a trace.

    Attributes:
        throughput: samples per second.
        shares: of time, by what it went to.
    """

    throughput: float
    shares: dict[str, float]


class _Kind(enum.IntEnum):
    """What happens; among events of one time, the lower kind comes first."""

    ADD = 1
    REMOVE = 2
    READY = 4
    ALL_MET = 5
    SOME_MET = 6
    STEP = 7
    CHECKPOINT = 8


@dataclass(order=True)
class _Event:
    """Something at a time; the subject, a node's number or a rendezvous', decides nothing."""

    time: int
    kind: _Kind
    subject: int = field(compare=False, default=0)


class _Status(enum.Enum):
    STOPPED = 0
    MEETING = 1
    RUNNING = 2


class System:
    """What the three systems have in common: nodes, rendezvous and iterations; it is Oobleck as it is.

    Args:
        measured: the model's figures.
        throughput: samples per second with 30 to 15 live nodes.
        pause: of a rendezvous, in milliseconds.
    """

    def __init__(self, measured: Measured, throughput: tuple[float, ...], pause: int) -> None:
        self.measured = measured
        self.throughput = throughput
        self.pause = pause
        self.events: list[_Event] = []
        # Where in which pipelines each node works; None until it is ready.
        self.nodes: dict[int, list[tuple[int, int]] | None] = {}
        self.meeting: list[int] = []
        self.status = _Status.STOPPED
        self.pipelines = 0
        self.waiting = 0
        self.version = 0
        self.steps = 0
        self.step = 0
        self.start: int | None = None
        self.previous = 0
        # Begin, end and samples per second of every iteration.
        self.iterations: list[tuple[int, int, float]] = []
        self.spent: dict[str, float] = {}

    def run(self, trace: RemovalTrace) -> SystemResult:
        """Lose the nodes of a trace; its last loss is the end."""
        for node in range(1, MOST + 1):
            self.push(0, _Kind.ADD, node)
        for place, node in enumerate(trace.removed, 1):
            self.push(place * trace.every, _Kind.REMOVE, node)
        # It does so too, and that changes the order of events of one time.
        heapq.heapify(self.events)
        end = len(trace.removed) * trace.every
        while self.events:
            event = heapq.heappop(self.events)
            if event.time >= end:
                break
            self.handle(event)
        return self.result()

    def result(self) -> SystemResult:
        """Throughput over all iterations, and the shares of time."""
        total = sum(self.spent.values())
        shares = {what: spent / total if total else 0.0 for what, spent in self.spent.items()}
        if not self.iterations or self.start is None:
            return SystemResult(0.0, shares)
        samples = sum((end - begin) / 1000 * rate for begin, end, rate in self.iterations)
        return SystemResult(samples / ((self.iterations[-1][1] - self.start) / 1000), shares)

    def push(self, time: int, kind: _Kind, subject: int = 0) -> None:
        """Let something happen later."""
        heapq.heappush(self.events, _Event(time, kind, subject))

    def spend(self, what: str, milliseconds: float) -> None:
        """Add to a share of time."""
        self.spent[what] = self.spent.get(what, 0.0) + milliseconds

    def handle(self, event: _Event) -> None:
        """What an event does."""
        time, node = event.time, event.subject
        if event.kind is _Kind.ADD:
            self.nodes[node] = None
            self.push(time + START, _Kind.READY, node)
        elif event.kind is _Kind.READY and node in self.nodes:
            self.nodes[node] = []
            if self.status is _Status.STOPPED:
                self.meet(time)
            elif self.status is _Status.MEETING:
                self.meeting.append(node)
            else:
                self.waiting += 1
        elif event.kind is _Kind.REMOVE:
            self.lose(time, node)
        elif event.kind in (_Kind.ALL_MET, _Kind.SOME_MET):
            self.met(time, event.kind)
        elif event.kind is _Kind.STEP and event.subject == self.version:
            self.end_step(time)

    def lose(self, time: int, node: int) -> None:
        """A node is lost: the iteration is redone, after a rendezvous."""
        del self.nodes[node]
        self.spend("redone", self.step)
        self.meet(time)

    def meet(self, time: int, kind: _Kind = _Kind.ALL_MET) -> None:
        """Begin a rendezvous."""
        self.status = _Status.MEETING
        self.gather(time, kind)

    def gather(self, time: int, kind: _Kind) -> None:
        """Of all nodes that are ready."""
        self.meeting = [node for node, places in self.nodes.items() if places is not None]
        self.spend("reconfiguring", self.pause)
        self.push(time + self.pause, kind)

    def met(self, time: int, kind: _Kind) -> None:
        """A rendezvous ends: pipelines are formed, or it begins anew if one of them is lost."""
        if any(node not in self.nodes for node in self.meeting):
            self.gather(time, kind)
            return
        self.pipelines = len(self.meeting) // STAGES
        places = [(pipeline, stage) for pipeline in range(self.pipelines) for stage in range(STAGES)]
        for place, node in enumerate(self.meeting):
            self.nodes[node] = places[place : place + 1]
        self.waiting = max(0, len(self.meeting) - len(places))
        self.version += 1
        self.meeting = []
        if not self.pipelines:
            self.status = _Status.STOPPED
            return
        self.status = _Status.RUNNING
        self.step = self.step_time()
        self.begin_step(time)
        if self.start is None:
            self.start = self.previous = time

    def step_time(self) -> int:
        """Of an iteration on the nodes that are ready."""
        live = sum(places is not None for places in self.nodes.values())
        rate = at_live(self.throughput, live) if self.throughput else 0
        return int(self.measured.batch / rate * 1000) if rate else NO_PROGRESS

    def begin_step(self, time: int) -> None:
        """Let an iteration end."""
        self.spend("effective", self.step)
        self.push(time + self.step, _Kind.STEP, self.version)

    def end_step(self, time: int) -> None:
        """An iteration ends, and the next begins."""
        self.note_step(time)
        self.previous = time
        self.begin_step(time)

    def note_step(self, time: int) -> None:
        """An iteration is done."""
        self.steps += 1
        seconds = (time - self.previous) / 1000
        self.iterations.append((self.previous, time, self.measured.batch / seconds if seconds else 0.0))


class BambooSystem(System):
    """Nodes compute their successor's work as well, and take it over."""

    def __init__(self, measured: Measured) -> None:
        super().__init__(measured, measured.bamboo, round(measured.bamboo_pause * 1000))
        # Iterations and time at the first loss since the last rendezvous; None also once it is paid for.
        self._loss: tuple[int, int] | None = None
        self._lossy = False

    def gather(self, time: int, kind: _Kind) -> None:
        """A rendezvous of all takes its own time, one to balance the pipelines another."""
        self.meeting = [node for node, places in self.nodes.items() if places is not None]
        everybody = kind is _Kind.ALL_MET
        length = round(BAMBOO_RENDEZVOUS * 1000) if everybody else self.pause
        self.spend("restarting" if everybody else "reconfiguring", length)
        self.push(time + length, kind)

    def met(self, time: int, kind: _Kind) -> None:
        """As always; what was lost before is forgotten."""
        version = self.version
        super().met(time, kind)
        if self.version != version:
            self._loss, self._lossy = None, False

    def lose(self, time: int, node: int) -> None:
        """Its predecessor takes over, unless that did so before: then everybody meets."""
        places = self.nodes.pop(node)
        self.spend("redone", self.step)
        if places:
            pipeline, stage = places[0]
            before = (pipeline, (stage - 1) % STAGES)
            keeper = next((other for other in self.nodes.values() if other and before in other), None)
            if len(places) > 1 or (keeper and len(keeper) > 1):
                self.meet(time)
                return
            if keeper:
                keeper.append(places[0])
        if self.status is _Status.RUNNING and not self._lossy:
            self._loss, self._lossy = (self.steps, time), True
            self.step = int(self.step * FALLBACK_SLOWDOWN)

    def begin_step(self, time: int) -> None:
        """Most of an iteration is redundant."""
        self.spend("effective", self.step * (1 - BAMBOO_REDUNDANT))
        self.spend("redundant", self.step * BAMBOO_REDUNDANT)
        self.push(time + self.step, _Kind.STEP, self.version)

    def end_step(self, time: int) -> None:
        """The iteration of a loss takes longer; then pipelines are balanced if that helps."""
        if self._loss is not None and self._loss[0] == self.steps:
            lost = self._loss[1]
            self._loss = None
            self.push(time + int((time - lost) * (FALLBACK_SLOWDOWN - 1)), _Kind.STEP, self.version)
            return
        self.note_step(time)
        self.previous = time
        if self._should_balance():
            self.meet(time, _Kind.SOME_MET)
        else:
            self.begin_step(time)

    def _should_balance(self) -> bool:
        double = sum(len(places) > 1 for places in self.nodes.values() if places)
        active = self.pipelines * STAGES - double
        if double and (self.waiting >= double or 2 * double / active > 0.05):
            return True
        return (active + self.waiting) // STAGES > self.pipelines


class VarunaSystem(System):
    """A checkpoint every ten iterations, and a restart from it after a loss."""

    def __init__(self, measured: Measured) -> None:
        checkpoint = int(measured.checkpoint * 1000)
        super().__init__(measured, measured.varuna, round(measured.varuna_restart * 1000) - checkpoint)
        self._checkpoint = checkpoint
        self._restarts = measured.varuna_restarts
        self._safe: int | None = None
        self._lossy = False

    def gather(self, time: int, kind: _Kind) -> None:
        """A restart."""
        self.meeting = [node for node, places in self.nodes.items() if places is not None]
        self.spend("restarting", self.pause)
        self.push(time + self.pause, kind)

    def lose(self, time: int, node: int) -> None:
        """All iterations since the last checkpoint are lost."""
        del self.nodes[node]
        self._lossy = True
        if self._safe is None:
            self.iterations = [(begin, end, 0.0) for begin, end, _ in self.iterations]
            self.spend("redone", time)
        else:
            self._lose_since(self._safe)
        self.meet(time)

    def end_step(self, time: int) -> None:
        """Every ten iterations and in the first after a loss a checkpoint is made; one that a loss hits is none."""
        self.note_step(time)
        if self.steps % VARUNA_ITERATIONS == 0 or self._lossy:
            self._lossy = False
            time += self._checkpoint
            self.spend("checkpoint", self._checkpoint)
            self.push(time + self._checkpoint, _Kind.CHECKPOINT)
            heapq.heapify(self.events)
            if self._will_fail():
                self.spend("redone", VARUNA_ITERATIONS * self.step)
                self.steps = max(0, self.steps - VARUNA_ITERATIONS)
                lost = self.iterations[-VARUNA_ITERATIONS:]
                # It clears ten iterations, and counts what it clears beyond the first as further ones.
                self.iterations[-VARUNA_ITERATIONS:] = [(begin, end, 0.0) for begin, end, _ in lost]
            else:
                self._safe = time
        self.previous = time
        self.begin_step(time)

    def step_time(self) -> int:
        """A restart may take another time with other nodes, from the next one on."""
        if self._restarts:
            live = sum(places is not None for places in self.nodes.values())
            self.pause = int(at_live(self._restarts, live) * 1000) - self._checkpoint
        return super().step_time()

    def _lose_since(self, safe: int) -> None:
        """The iteration that begins at the checkpoint and all after it; the last one if none does."""
        first = next((place for place, (begin, end, _) in enumerate(self.iterations) if safe in (begin, end)), -1)
        if first < 0:
            return
        kept = self.iterations[:first]
        lost = [(begin, end, 0.0) for begin, end, _ in self.iterations[first:]]
        self.iterations = kept + lost
        # It counts both ends of an iteration, but for the first one's begin.
        self.spend("redone", self.step * (2 * len(lost) - 1))

    def _will_fail(self) -> bool:
        """Whether a loss is before the checkpoint in the heap, which is no order of time."""
        kinds = [event.kind for event in self.events]
        return _Kind.REMOVE in kinds[: kinds.index(_Kind.CHECKPOINT)]


def at_live(values: Sequence[float], live: int) -> float:
    """What was measured with so many live nodes, of 30 to 15."""
    return values[min(len(values) - 1, max(0, MOST - live))]


def oobleck_system(measured: Measured) -> System:
    """Oobleck: a short pause and the iteration, per loss."""
    return System(measured, measured.oobleck, round(measured.oobleck_pause * 1000))
