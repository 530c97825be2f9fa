"""Reading recordings: one file, or all files of a run's directory, as lines or as one time line."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from recycle.errors import JobError, PlanFileError, UserError
from recycle.files import read_bytes
from recycle.job import Server
from recycle.kinds import RECORDING, mistaken
from recycle.record.recording import (
    FORMAT,
    VERSION,
    Alignment,
    DeathLine,
    InstantLine,
    Line,
    RecoveryLine,
    RunLine,
    SampleLine,
    SpanLine,
    ViewLine,
)
from recycle.record.timeline import Span, Timeline
from recycle.wording import plural, throughput_text


def load_recording(path: Path) -> Timeline:
    """Read a recording, or all recordings of a run's directory (``events/*.jsonl``, or ``*.jsonl``) as one time line.

    Servers write times of their machine's clock, which are moved to the launcher's; here the first span starts at 0. A
    last line without an end is left out: it is what a killed server leaves.

    Raises:
        UserError: it cannot be read.
        PlanFileError: it is no recording of this version, or the files of a directory disagree on the time unit.
    """
    return _assemble(dict(_contents(path)), str(path)).from_zero()


def load_lines(path: Path) -> Iterator[Line]:
    """The lines of a recording, or of all recordings of a run's directory, in the order of each file.

    Raises:
        UserError: it cannot be read.
        PlanFileError: it is no recording of this version; the message names the line.
    """
    for file, content in _contents(path):
        yield from decode_lines(content, file)


def decode_lines(content: bytes, source: str) -> Iterator[Line]:
    """The lines of a recording's content, with times of the launcher's clock; the first is its head.

    Args:
        content: what the file holds.
        source: what to call it in errors.

    Raises:
        PlanFileError: it is no recording of this version; the message names the line.
    """
    decoder, alignment = msgspec.json.Decoder(Line), Alignment()
    whole = content[: content.rfind(b"\n") + 1]
    if not whole:
        raise PlanFileError(f"{source}: the file is empty; a recording begins with a line of type run")
    mistake = mistaken(content, RECORDING)
    if mistake is not None:
        raise PlanFileError(f"{source}: {mistake}")
    for number, text in enumerate(whole.splitlines(), 1):
        try:
            line: Line = decoder.decode(text)
            if isinstance(line, RunLine):
                _check(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, PlanFileError) as error:
            raise PlanFileError(f"{source}: line {number}: {error}") from error
        if number == 1 and not isinstance(line, RunLine):
            raise PlanFileError(f"{source}: line 1: a recording begins with a line of type run")
        yield alignment.align(line)


def timeline_of(lines: Iterable[Line]) -> Timeline:
    """The time line that some lines of a run's recordings describe; it begins with its first span.

    Args:
        lines: in any order, with at least one head.

    Raises:
        JobError: what is written as a server is none.
        PlanFileError: a span is not legal.
    """
    parts, heads = _Parts(), []
    for line in lines:
        if isinstance(line, RunLine):
            heads.append(line)
        parts.add(line)
    return parts.timeline(heads[0]).from_zero()


class _Parts:
    """Collects the lines of the servers of one run, whose clocks agree."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._instants: list[InstantLine] = []
        self._samples: list[tuple[Server, SampleLine]] = []
        self._recoveries: list[tuple[Server, RecoveryLine]] = []

    def add(self, line: Line) -> None:
        """Take in a line.

        Raises:
            JobError: what is written as a server is none.
            PlanFileError: it is no legal span.
        """
        match line:
            case SpanLine():
                self._spans.append(Span.parse(line))
            case InstantLine(kind="standstill"):
                pass  # a stack is read, and not drawn
            case InstantLine():
                if line.server:
                    Server.parse(line.server)
                self._instants.append(line)
            case SampleLine():
                self._samples.append((Server.parse(line.server), line))
            case DeathLine():
                Server.parse(line.server)
                self._instants.append(InstantLine("failure", line.time, line.server, f"{line.server} {line.reason}"))
            case ViewLine() if line.epoch:
                self._instants.extend(_instants(line))
            case RecoveryLine():
                self._recoveries.append((Server.parse(line.server), line))

    def timeline(self, head: RunLine) -> Timeline:
        """All that was collected, in order."""
        samples = sorted(self._samples, key=lambda each: (each[0], each[1].time))
        recoveries = sorted(self._recoveries, key=lambda each: (each[0], each[1].noticed))
        return Timeline(
            title=head.title,
            time_unit=head.time_unit,
            source=head.source,
            spans=tuple(sorted(self._spans, key=lambda span: (span.server, span.start))),
            instants=_distinct(sorted(self._instants, key=lambda instant: instant.time)),
            samples=tuple(sample for _, sample in samples),
            period=head.period,
            recoveries=tuple(recovery for _, recovery in recoveries),
        )


def _assemble(contents: Mapping[str, bytes], name: str) -> Timeline:
    """One time line of the recordings of one run.

    Args:
        contents: of each recording, by what to call it in errors.
        name: what to call them together.

    Raises:
        PlanFileError: one is no recording, they have different time units, or some are planned and some measured.
    """
    parts, heads = _Parts(), []
    for source, content in contents.items():
        for number, line in enumerate(decode_lines(content, source), 1):
            if number == 1:
                assert isinstance(line, RunLine)
                heads.append(line)
            try:
                parts.add(line)
            except (PlanFileError, JobError) as error:
                raise PlanFileError(f"{source}: line {number}: {error}") from error
    first = heads[0]
    for other in heads:
        if (other.time_unit, other.source) != (first.time_unit, first.source):
            raise PlanFileError(
                f"{name}: recordings of one run share a time unit and a source, and these are "
                f"{first.source} in {first.time_unit}s and {other.source} in {other.time_unit}s"
            )
    return parts.timeline(first)


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """What a recording holds, or each one of a run's directory that was begun; with what to call it in errors."""
    folder = path / "events" if (path / "events").is_dir() else path
    if not folder.is_dir():
        yield str(path), read_bytes(path)
        return
    # Where a disk was full, a file may hold not even its first line.
    files = (file for file in sorted(folder.glob("*.jsonl")) if file.is_file())
    found = [(str(file), content) for file in files if b"\n" in (content := read_bytes(file))]
    if not found:
        raise UserError(f"{path}: no recordings here: a run's directory holds one .jsonl file per server")
    yield from found


def _check(head: RunLine) -> None:
    if head.format != FORMAT:
        raise PlanFileError(f"this is a {head.format!r} file, and a {FORMAT!r} file is needed - at `$.format`")
    if head.version != VERSION:
        raise PlanFileError(f"version {head.version}, and this release reads version {VERSION} - at `$.version`")


def _instants(view: ViewLine) -> Iterator[InstantLine]:
    """What a new view is on the time line: its beginning, and the return of each server that joined."""
    name = f"view {view.epoch}"
    throughput = throughput_text(view.throughput, view.baseline)
    text = f"{name}: {plural(len(view.servers), 'server')}, {throughput}, {view.plan}; {view.cause}"
    yield InstantLine("view change", view.time, None, text, view.step)
    for joined in view.joined:
        Server.parse(joined)
        yield InstantLine("rejoin", view.time, joined, f"{joined} is back in {name}")


def _distinct(instants: Iterable[InstantLine]) -> tuple[InstantLine, ...]:
    """Instants by time, each once: of a death and of a view several servers tell, of a view each at its own time."""
    found: dict[tuple[object, ...], InstantLine] = {}
    for each in instants:
        time = None if each.kind in ("view change", "rejoin") else each.time
        found.setdefault((each.kind, each.server, each.text, time), each)
    return tuple(found.values())
