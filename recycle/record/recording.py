"""Recordings: a time line as JSON lines, which servers append to while they run; docs/show.md describes the format."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from recycle.errors import JobError, PlanFileError, UserError
from recycle.files import read_bytes, write_whole
from recycle.job import Server
from recycle.plan.instruction import Instruction
from recycle.record.timeline import Instant, InstantKind, LaneName, Pause, Sample, Span, Timeline

FORMAT = "recycle run"
VERSION = 1


class RunLine(msgspec.Struct, frozen=True, tag="run", tag_field="type", forbid_unknown_fields=True):
    """The first line of a recording."""

    format: str
    version: int
    title: str
    time_unit: str
    source: Literal["planned", "measured"]
    period: float | None = None


class SpanLine(msgspec.Struct, frozen=True, tag="span", tag_field="type", forbid_unknown_fields=True, gc=False):
    """One instruction of one server."""

    server: str
    lane: LaneName
    instruction: str
    start: float
    end: float
    iteration: int = 0
    index: int = -1


class InstantLine(msgspec.Struct, frozen=True, tag="instant", tag_field="type", forbid_unknown_fields=True, gc=False):
    """Something that happened at one time."""

    kind: InstantKind
    time: float
    server: str | None
    text: str


class SampleLine(msgspec.Struct, frozen=True, tag="sample", tag_field="type", forbid_unknown_fields=True, gc=False):
    """What a server holds from this time on."""

    server: str
    time: float
    memory: int


class IterationLine(msgspec.Struct, frozen=True, tag="iteration", tag_field="type", forbid_unknown_fields=True):
    """What a server says at the end of an iteration.

    Attributes:
        server: whose.
        step: its number, from 0.
        seconds: how long it took there.
        losses: of all micro-batches of all pipelines, from the servers of the last stage; empty from the others.
        peak_memory: the most that was held for micro-batches, in the job's unit.
        epoch: of the view in which it was made; an iteration that is made again is told again.
    """

    server: str
    step: int
    seconds: float
    losses: list[float]
    peak_memory: int
    epoch: int = 0


class EvaluationLine(msgspec.Struct, frozen=True, tag="evaluation", tag_field="type", forbid_unknown_fields=True):
    """Losses on held-out data, from a server of the last stage; empty from the others.

    Attributes:
        server: whose.
        step: how many iterations were made before.
        losses: one per micro-batch of all pipelines.
        epoch: of the view.
    """

    server: str
    step: int
    losses: list[float]
    epoch: int = 0


class DeathLine(msgspec.Struct, frozen=True, tag="death", tag_field="type", forbid_unknown_fields=True):
    """A server is dead.

    Attributes:
        server: which.
        incarnation: which of its lives.
        time: of its last sign of life.
        reason: how it died, as one says it after its name.
        noticed: by its agent, by missing heartbeats, or because it did not answer an alarm.
        epoch: of the first view without it.
    """

    server: str
    incarnation: int
    time: float
    reason: str
    noticed: str
    epoch: int


class ViewLine(msgspec.Struct, frozen=True, tag="view", tag_field="type", forbid_unknown_fields=True):
    """A view began.

    Attributes:
        epoch: its number.
        time: when it was agreed on.
        servers: who is in it.
        joined: who was not in the one before.
        step: the iteration that it begins with.
        cause: why there is a new view.
        restore: where the state of that step comes from: memory or checkpoint.
        period: of its plan, in the job's time.
        retention: of its plan: the fault-free 1F1B period over this one's.
        plan: where its plan comes from.
    """

    epoch: int
    time: float
    servers: list[str]
    joined: list[str]
    step: int
    cause: str
    restore: str
    period: int
    retention: float
    plan: str


class RecoveryLine(msgspec.Struct, frozen=True, tag="recovery", tag_field="type", forbid_unknown_fields=True):
    """What a change of views took on one server that went through it; all are times of the run's clock.

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
    noticed: float
    agreed: float
    rebuilt: float
    restored: float
    resumed: float
    redone: float


Line = (
    RunLine | SpanLine | InstantLine | SampleLine | IterationLine | EvaluationLine | DeathLine | ViewLine | RecoveryLine
)


def head_line(timeline: Timeline) -> RunLine:
    """The first line of a time line's recording."""
    return RunLine(FORMAT, VERSION, timeline.title, timeline.time_unit, timeline.source, timeline.period)


def span_line(span: Span) -> SpanLine:
    """A span as a line of a recording."""
    return SpanLine(
        str(span.server), span.lane, str(span.instruction), span.start, span.end, span.iteration, span.index
    )


def encode_recording(timeline: Timeline) -> bytes:
    """The content of a recording: the head, and then a line per span, instant, sample and pause."""
    return b"".join(msgspec.json.encode(line) + b"\n" for line in _lines(timeline))


def save_recording(timeline: Timeline, path: Path) -> None:
    """Write a recording, whole or not at all.

    Raises:
        UserError: the file cannot be written.
    """
    write_whole(path, encode_recording(timeline))


def load_recording(path: Path) -> Timeline:
    """Read a recording, or all recordings of a run's directory (``events/*.jsonl``, or ``*.jsonl``) as one time line.

    Servers write the times of a clock that they share; here the first span starts at 0. A last line without an end is
    left out: it is what a killed server leaves.

    Raises:
        UserError: it cannot be read.
        PlanFileError: it is no recording of this version, or the files of a directory disagree on the time unit.
    """
    parts = [decode_recording(read_bytes(file), str(file)) for file in _files(path)]
    return merge(parts, str(path)).from_zero()


def load_lines(path: Path) -> Iterator[Line]:
    """The lines of a recording, or of all recordings of a run's directory, in the order of each file.

    Raises:
        UserError: it cannot be read.
        PlanFileError: it is no recording of this version; the message names the line.
    """
    for file in _files(path):
        yield from decode_lines(read_bytes(file), str(file))


def decode_lines(content: bytes, source: str) -> Iterator[Line]:
    """The lines of a recording's content; the first is its head.

    Args:
        content: what the file holds.
        source: what to call it in errors.

    Raises:
        PlanFileError: it is no recording of this version; the message names the line.
    """
    decoder = msgspec.json.Decoder(Line)
    whole = content[: content.rfind(b"\n") + 1]
    if not whole:
        raise PlanFileError(f"{source}: the file is empty; a recording begins with a line of type run")
    for number, text in enumerate(whole.splitlines(), 1):
        try:
            line: Line = decoder.decode(text)
            if isinstance(line, RunLine):
                _check(line)
        except (msgspec.DecodeError, UnicodeDecodeError, PlanFileError) as error:
            raise PlanFileError(f"{source}: line {number}: {error}") from error
        if number == 1 and not isinstance(line, RunLine):
            raise PlanFileError(f"{source}: line 1: a recording begins with a line of type run")
        yield line


def decode_recording(content: bytes, source: str) -> Timeline:
    """The time line that a recording's content describes.

    Args:
        content: what the file holds.
        source: what to call it in errors.

    Raises:
        PlanFileError: it is no recording of this version; the message names the line.
    """
    head: RunLine | None = None
    spans: list[Span] = []
    instants: list[Instant] = []
    samples: list[Sample] = []
    pauses: list[Pause] = []
    for number, line in enumerate(decode_lines(content, source), 1):
        try:
            match line:
                case RunLine():
                    head = head or line
                case SpanLine():
                    spans.append(_span(line))
                case InstantLine():
                    server = Server.parse(line.server) if line.server else None
                    instants.append(Instant(line.kind, line.time, server, line.text))
                case SampleLine():
                    samples.append(Sample(Server.parse(line.server), line.time, line.memory))
                case DeathLine():
                    server = Server.parse(line.server)
                    instants.append(Instant("failure", line.time, server, f"{server} {line.reason}"))
                case ViewLine() if line.epoch:
                    instants.extend(_view(line))
                case RecoveryLine():
                    pauses.append(_pause(line))
        except (PlanFileError, JobError) as error:
            raise PlanFileError(f"{source}: line {number}: {error}") from error
    assert head is not None
    return Timeline(
        title=head.title,
        time_unit=head.time_unit,
        source=head.source,
        spans=tuple(sorted(spans, key=lambda span: (span.server, span.start))),
        instants=tuple(sorted(instants, key=lambda instant: instant.time)),
        samples=tuple(sorted(samples, key=lambda sample: (sample.server, sample.time))),
        period=head.period,
        pauses=tuple(sorted(pauses, key=lambda pause: (pause.server, pause.noticed))),
    )


def merge(parts: Iterable[Timeline], source: str) -> Timeline:
    """One time line of the servers of one run, whose clocks agree.

    Raises:
        PlanFileError: the parts have different time units, or some are planned and some measured.
    """
    first, *others = parts
    for other in others:
        if (other.time_unit, other.source) != (first.time_unit, first.source):
            raise PlanFileError(
                f"{source}: recordings of one run share a time unit and a source, and these are "
                f"{first.source} in {first.time_unit}s and {other.source} in {other.time_unit}s"
            )
    everything = [first, *others]
    return msgspec.structs.replace(
        first,
        spans=tuple(sorted((each for part in everything for each in part.spans), key=lambda s: (s.server, s.start))),
        instants=_distinct(sorted((each for part in everything for each in part.instants), key=lambda i: i.time)),
        samples=tuple(sorted((each for part in everything for each in part.samples), key=lambda s: (s.server, s.time))),
        pauses=tuple(
            sorted((each for part in everything for each in part.pauses), key=lambda p: (p.server, p.noticed))
        ),
    )


def _files(path: Path) -> list[Path]:
    folder = path / "events" if (path / "events").is_dir() else path
    files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else [path]
    if not files:
        raise UserError(f"{path}: no recordings here: a run's directory holds one .jsonl file per server")
    return files


def _check(head: RunLine) -> None:
    if head.format != FORMAT:
        raise PlanFileError(f"this is a {head.format!r} file, and a {FORMAT!r} file is needed - at `$.format`")
    if head.version != VERSION:
        raise PlanFileError(f"version {head.version}, and this release reads version {VERSION} - at `$.version`")


def _span(line: SpanLine) -> Span:
    if not line.start <= line.end:
        raise PlanFileError(f"the span ends at {line.end}, before its start at {line.start} - at `$.end`")
    server, instruction = Server.parse(line.server), Instruction.parse(line.instruction)
    return Span(server, line.lane, instruction, line.start, line.end, line.iteration, line.index)


def _view(line: ViewLine) -> Iterator[Instant]:
    name = f"view {line.epoch}"
    text = f"{name}: {len(line.servers)} servers, retention {line.retention:.0%}, {line.plan}; {line.cause}"
    yield Instant("view change", line.time, None, text)
    for joined in line.joined:
        yield Instant("rejoin", line.time, Server.parse(joined), f"{joined} is back in {name}")


def _pause(line: RecoveryLine) -> Pause:
    return Pause(Server.parse(line.server), *msgspec.structs.astuple(line)[1:])


def _distinct(instants: Iterable[Instant]) -> tuple[Instant, ...]:
    """Instants by time, each once: of a death and of a view several servers tell, of a view each at its own time."""
    found: dict[tuple[object, ...], Instant] = {}
    for each in instants:
        time = None if each.kind in ("view change", "rejoin") else each.time
        found.setdefault((each.kind, each.server, each.text, time), each)
    return tuple(found.values())


def _lines(timeline: Timeline) -> Iterator[Line]:
    yield head_line(timeline)
    for span in timeline.spans:
        yield span_line(span)
    for instant in timeline.instants:
        yield InstantLine(instant.kind, instant.time, str(instant.server) if instant.server else None, instant.text)
    for sample in timeline.samples:
        yield SampleLine(str(sample.server), sample.time, sample.memory)
    for pause in timeline.pauses:
        yield RecoveryLine(str(pause.server), *msgspec.structs.astuple(pause)[1:])
