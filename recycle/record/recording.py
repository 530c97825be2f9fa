"""The lines of a recording, which servers append to while they run; docs/reference/recordings.md describes the format.

Each kind of line states one fact and is the only struct for it. Servers and instructions are in their text forms.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

import msgspec

from recycle.placement import Layout
from recycle.wording import BASELINE, microseconds

FORMAT = "recycle run"
VERSION = 1

PLAN, SETTINGS = "plan.json", "run.json"
"""Files in a run's folder: its plan, and the settings of ``recycle train``."""

Time = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
"""When, or how long: no run is so old, and numbers far beyond it overflow where they are reckoned with."""

Loss = Annotated[float, msgspec.Meta(ge=-1e39, le=1e39)]
"""Of a micro-batch: what a float of 32 bits can be."""

ProcessName = Annotated[str, msgspec.Meta(pattern=r"^[^#]*(#[0-9]{1,18})?$")]
"""A server, with the number of its life behind ``#`` if it is not the first, or ``launcher``."""

LaneName = Literal["compute", "communication"]
InstantKind = Literal[
    "failure",
    "view change",
    "optimizer step",
    "rejoin",
    "fault",
    "warning",
    "unprotected",
    "protected",
    "end",
    "norm",
    "memory",
    "move",
    "standstill",
]


class RunLine(msgspec.Struct, frozen=True, tag="run", tag_field="type", forbid_unknown_fields=True):
    """The first line of a recording.

    Attributes:
        format: always ``FORMAT``.
        version: of the format.
        title: what is shown: a job and its mode, or a run.
        time_unit: what one unit of time is.
        source: whether the times are planned or measured.
        period: time per iteration in the steady state, where it was planned.
    """

    format: str
    version: int
    title: str
    time_unit: str
    source: Literal["planned", "measured"]
    period: Time | None = None


class ProcessLine(msgspec.Struct, frozen=True, tag="process", tag_field="type", forbid_unknown_fields=True):
    """Which process writes a recording.

    Attributes:
        name: the server, with the number of its life if it is not the first, or ``launcher``.
        pid: its number on its host.
        host: the name of that.
        ahead: by how much the clock of its times is ahead of the launcher's, which all are read by.
        zero: when the clock of its times showed 0, in seconds since 1970; None if that is not known.
        numbering: which numbering of processes its number is of, as a container has its own; None if that is not known.
        time: when it began; None if that is not known.
        clock: which one the launcher's is: that of a machine since it was started. A run that goes on may have another.
        iterations: how many the run is to have; None if that is not known.
    """

    name: ProcessName
    pid: int
    host: str
    ahead: Time = 0.0
    zero: Time | None = None
    numbering: int | None = None
    time: Time | None = None
    clock: str = ""
    iterations: int | None = None


class EndedLine(msgspec.Struct, frozen=True, tag="ended", tag_field="type", forbid_unknown_fields=True):
    """The last line of a process that ends by itself; one that is killed writes none.

    Attributes:
        name: of the process, as in its first lines.
    """

    name: ProcessName


class SpanLine(msgspec.Struct, frozen=True, tag="span", tag_field="type", forbid_unknown_fields=True, gc=False):
    """One instruction of one server: the text form of a ``Span``, which describes the fields."""

    server: str
    lane: LaneName
    instruction: str
    start: Time
    end: Time
    iteration: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] = 0
    index: int = -1


class InstantLine(msgspec.Struct, frozen=True, tag="instant", tag_field="type", forbid_unknown_fields=True, gc=False):
    """Something that happens at one time: on one server, or to the whole job where ``server`` is None.

    Attributes:
        kind: of what.
        time: when.
        server: where.
        text: what to say.
        iteration: of a change of views, the iteration with which the new one begins, from 0.
    """

    kind: InstantKind
    time: Time
    server: str | None
    text: str
    iteration: int | None = None


class SampleLine(msgspec.Struct, frozen=True, tag="sample", tag_field="type", forbid_unknown_fields=True, gc=False):
    """The memory that a server holds for activations from this time on."""

    server: str
    time: Time
    memory: int


class IterationLine(msgspec.Struct, frozen=True, tag="iteration", tag_field="type", forbid_unknown_fields=True):
    """What a server reports at the end of an iteration.

    Attributes:
        server: whose.
        step: its number, from 0.
        seconds: how long it took there.
        losses: of all micro-batches of all pipelines, or their mean, from the servers of the last stage; empty from the
            others. One that is not finite is written as null, and read as None.
        peak_memory: the most that was held for micro-batches, in the job's unit.
        epoch: of the view in which it was made; an iteration that is made again is reported again.
        end: when it was over there; None if that is not known.
        micro_batches: how many it had of all pipelines; 0 if all those of the job.
    """

    server: str
    step: int
    seconds: Time
    losses: Sequence[Loss | None]
    peak_memory: int
    epoch: int = 0
    end: Time | None = None
    micro_batches: int = 0


class AbandonedLine(msgspec.Struct, frozen=True, tag="abandoned", tag_field="type", forbid_unknown_fields=True):
    """A server has given up an iteration, which is made again in a later view.

    Attributes:
        server: which.
        epoch: of the view in which it was begun.
        step: its number, from 0.
        start: when its first instruction began there.
    """

    server: str
    epoch: int
    step: int
    start: Time


class EvaluationLine(msgspec.Struct, frozen=True, tag="evaluation", tag_field="type", forbid_unknown_fields=True):
    """Losses on held-out data, from a server of the last stage; empty from the others.

    Attributes:
        server: whose.
        step: how many iterations were made before.
        losses: one per micro-batch of all pipelines, or their mean; None as in ``IterationLine``.
        epoch: of the view.
    """

    server: str
    step: int
    losses: Sequence[Loss | None]
    epoch: int = 0


class DeathLine(msgspec.Struct, frozen=True, tag="death", tag_field="type", forbid_unknown_fields=True):
    """A server is dead.

    Attributes:
        server: which.
        incarnation: which of its lives.
        time: of its last sign of life.
        reason: how it died, in words that follow its name.
        noticed: by its agent, by missing heartbeats, because it did not answer an alarm, told by itself, or by a link
            over which no data comes.
        epoch: of the first view without it.
    """

    server: str
    incarnation: int
    time: Time
    reason: str
    noticed: str
    epoch: int

    @property
    def left(self) -> bool:
        """Whether it was asked to leave, and left between two iterations: no failure."""
        return self.noticed == "itself"


class ViewLine(msgspec.Struct, frozen=True, tag="view", tag_field="type", forbid_unknown_fields=True):
    """A view began.

    Attributes:
        epoch: its number.
        time: when it was agreed on.
        servers: of the view.
        joined: those of them that were not in the view before.
        step: the iteration that it begins with.
        cause: why there is a new view.
        restore: where the state of that step comes from: memory or checkpoint.
        period: of its plan, in the job's time.
        throughput: of its plan: the baseline's period over this one's.
        plan: where its plan comes from.
        moved: whether servers hold other chunks than in the view before.
        baseline: what the baseline is called: 1F1B, where memory is tight within that.
        layout: which server holds what; None where that is as the job says.
    """

    epoch: int
    time: Time
    servers: list[str]
    joined: list[str]
    step: int
    cause: str
    restore: str
    period: int
    throughput: Annotated[float, msgspec.Meta(ge=1e-9, le=1e9)]
    plan: str
    moved: bool = False
    baseline: str = BASELINE
    layout: Annotated[Layout, msgspec.Meta(min_length=1)] | None = None


class RecoveryLine(msgspec.Struct, frozen=True, tag="recovery", tag_field="type", forbid_unknown_fields=True):
    """How a server that stays alive gets from a broken view into the next one; all are times of the run's clock.

    Attributes:
        server: which.
        epoch: of the new view.
        step: the iteration that it begins with.
        noticed: the server knew that the old view is broken.
        agreed: it had the new view.
        rebuilt: its connections to the others were made.
        restored: it held the state that the iteration starts from.
        resumed: its first instruction began.
        redone: the iteration was finished.
    """

    server: str
    epoch: int
    step: int
    noticed: Time
    agreed: Time
    rebuilt: Time
    restored: Time
    resumed: Time
    redone: Time


class CopyLine(msgspec.Struct, frozen=True, tag="copy", tag_field="type", forbid_unknown_fields=True, gc=False):
    """A server has put its part of a version of its stage's state into the memory of hosts.

    Attributes:
        server: whose part.
        stage: whose state.
        epoch: of the view in which it was copied.
        version: how many iterations have made it.
        number: which part it is, from 0.
        parts: how many the version was cut into.
        began: the version with which that view began.
        hosts: whose keepers have it; none where no keeper can be reached.
        needed: how many of these must be left to have it: one, unless each has another piece of it.
    """

    server: str
    stage: int
    epoch: int
    version: int
    number: int
    parts: int
    began: int
    hosts: list[str]
    needed: int = 1


Line = (
    RunLine
    | ProcessLine
    | EndedLine
    | SpanLine
    | InstantLine
    | SampleLine
    | IterationLine
    | AbandonedLine
    | EvaluationLine
    | DeathLine
    | ViewLine
    | RecoveryLine
    | CopyLine
)

TIMES = ("start", "end", "time", "noticed", "agreed", "rebuilt", "restored", "resumed", "redone")
"""Fields that are times of a clock, in whichever line."""

_L = TypeVar("_L", bound=Line)


class Alignment:
    """Moves the lines of one recording, in their order, to the clock of all recordings of a run.

    That is the launcher's. Where a run went on under another clock, it is the one that is read of first, and they are
    compared by their dates.

    Args:
        zeros: when each launcher's clock showed 0, by its name; one for all recordings of a run, which fill it.
    """

    def __init__(self, zeros: dict[str, float]) -> None:
        self._zeros = zeros
        self._second = 1e6
        self._ahead = 0.0

    def align(self, line: Line) -> Line:
        """A line with times of that clock."""
        if isinstance(line, RunLine):
            self._second = 1e6 / microseconds(line.time_unit)
        elif isinstance(line, ProcessLine):
            self._ahead = line.ahead - self._between(line) * self._second
            line = msgspec.structs.replace(line, ahead=self._ahead)
        return moved(line, self._ahead)

    def _between(self, line: ProcessLine) -> float:
        """Seconds from when the clock that all are read by showed 0 until a process's launcher's did."""
        if line.zero is None:
            return 0.0
        mine = self._zeros.setdefault(line.clock, line.zero + line.ahead / self._second)
        return mine - next(iter(self._zeros.values()))


def moved(line: _L, origin: float) -> _L:
    """A line with times of a clock that showed 0 at a time of the line's own clock."""
    if not origin:
        return line
    # How a death was noticed is no time, and has the name of one.
    times = {name: value for name in TIMES if isinstance(value := getattr(line, name, None), float)}
    return msgspec.structs.replace(line, **{name: value - origin for name, value in times.items()})
