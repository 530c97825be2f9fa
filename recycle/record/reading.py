"""Reading recordings of any size: one file, or all files of a run's directory, as lines or as one time line."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice, starmap
from pathlib import Path

import msgspec

from recycle.errors import JobError, PlanFileError, UserError
from recycle.files import read_backwards, read_bytes, read_lines
from recycle.job import Server
from recycle.kinds import RECORDING, mistaken
from recycle.plan.document import Head
from recycle.record.latest import LatestSpans
from recycle.record.recording import (
    FORMAT,
    VERSION,
    Alignment,
    DeathLine,
    InstantLine,
    IterationLine,
    Line,
    RecoveryLine,
    RunLine,
    SampleLine,
    SpanLine,
    ViewLine,
)
from recycle.record.timeline import Span, Timeline
from recycle.wording import plural, throughput_text

SPAN = b'{"type":"span"'
"""How a line of an instruction begins, if it was written by a run."""


def decode_line(text: bytes, decoder: msgspec.json.Decoder[Line]) -> Line:
    """A line of a recording.

    Args:
        text: as it is written.
        decoder: of lines.

    Raises:
        msgspec.DecodeError: it is none.
        UnicodeDecodeError: likewise.
        RecursionError: likewise.
        PlanFileError: it is the head of another format, or of a version that this release does not read.
    """
    try:
        line = decoder.decode(text)
    except msgspec.ValidationError:
        # The head of another version may have other fields.
        with suppress(msgspec.ValidationError):
            _check(msgspec.json.decode(text, type=Head))
        raise
    if isinstance(line, RunLine):
        _check(line)
    return line


def _check(head: RunLine | Head) -> None:
    if head.format != FORMAT:
        raise PlanFileError(f"this is a {head.format!r} file, and a {FORMAT!r} file is needed - at `$.format`")
    if head.version != VERSION:
        raise PlanFileError(f"version {head.version}, and this release reads version {VERSION} - at `$.version`")


def recordings(path: Path) -> list[Path]:
    """A recording, or each one of a run's directory that was begun.

    Raises:
        UserError: there is none, or one cannot be read.
    """
    folder = path / "events" if (path / "events").is_dir() else path
    if not folder.is_dir():
        return [path]
    # Where a disk was full, a file may hold not even its first line.
    files = (file for file in sorted(folder.glob("*.jsonl")) if file.is_file())
    found = [file for file in files if next(read_lines(file), None) is not None]
    if not found:
        raise UserError(f"{path}: no recordings here: a run's directory holds one .jsonl file per server")
    return found


def load_recording(path: Path) -> Timeline:
    """Read a recording, or all recordings of a run's directory (``events/*.jsonl``, or ``*.jsonl``) as one time line.

    Servers write times of their machine's clock, which are moved to the run's; here the first span starts at 0. A last
    line without an end is left out: it is what a killed server leaves.

    Raises:
        UserError: it cannot be read.
        PlanFileError: it is no recording of this version, or the files of a directory disagree on the time unit.
    """
    return load_run(path)[0]


def load_run(path: Path, iterations: int | None = None) -> tuple[Timeline, list[Line]]:
    """The same, and the lines of all that is no instruction and no sample of memory.

    Args:
        path: of the recording or the directory.
        iterations: how many of the last iterations of each server the time line has; None for all.

    Raises:
        UserError: it cannot be read.
        PlanFileError: as ``load_recording``.
    """
    parts = _Parts(iterations)
    heads: list[RunLine] = []
    facts: list[Line] = []
    for file, number, line in _numbered(path):
        try:
            parts.add(line)
        except (PlanFileError, JobError) as error:
            raise PlanFileError(f"{file}: line {number}: {error}") from error
        if isinstance(line, RunLine):
            heads.append(line)
        if not isinstance(line, SpanLine | SampleLine):
            facts.append(line)
    return parts.timeline(heads[0]).from_zero(), facts


def load_lines(path: Path, *, facts: bool = False) -> Iterator[Line]:
    """The lines of a recording, or of all recordings of a run's directory, in the order of each file.

    Args:
        path: of the recording or the directory.
        facts: whether to leave out instructions but the first of each file, since a long run has gigabytes of them.

    Raises:
        UserError: it cannot be read.
        PlanFileError: as ``load_recording``.
    """
    return (line for _, _, line in _numbered(path, facts=facts))


def next_epoch(folder: Path) -> int:
    """The number of the next view in a run's folder: where a run goes on in it, its views are numbered on.

    What cannot be read there keeps no run from going on.
    """
    return max((_last_epoch(file) for file in (folder / "events").glob("*.jsonl")), default=-1) + 1


def _last_epoch(file: Path) -> int:
    """The number of the last view that a recording speaks of; -1 if it speaks of none."""
    # What is told of a view may come behind the first line of the next one.
    return max(islice(_epochs_backwards(file), 16), default=-1)


def _epochs_backwards(file: Path) -> Iterator[int]:
    decoder = msgspec.json.Decoder[Line](Line)
    with suppress(UserError):
        for text in read_backwards(file):
            with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                line = decoder.decode(text)
                if isinstance(line, ViewLine | IterationLine | RecoveryLine):
                    yield line.epoch


def _numbered(path: Path, *, facts: bool = False) -> Iterator[tuple[Path, int, Line]]:
    """The lines of a run's recordings, each with its file and its number there, from 1.

    Raises:
        UserError: one cannot be read.
        PlanFileError: one is no recording of this version, or they disagree on the time unit.
    """
    first: RunLine | None = None
    zeros: dict[str, float] = {}
    for file in recordings(path):
        for number, line in _lines_of(file, Alignment(zeros), facts=facts):
            if number == 1 and isinstance(line, RunLine):
                first = first or line
                if (line.time_unit, line.source) != (first.time_unit, first.source):
                    raise PlanFileError(
                        f"{path}: recordings of one run share a time unit and a source, and these are "
                        f"{first.source} in {first.time_unit}s and {line.source} in {line.time_unit}s"
                    )
            yield file, number, line


def _lines_of(file: Path, alignment: Alignment, *, facts: bool) -> Iterator[tuple[int, Line]]:
    """The lines of a recording with their numbers, and with times of the run's clock; the first is its head.

    Raises:
        UserError: it cannot be read.
        PlanFileError: it is no recording of this version; the message names the line.
    """
    decoder, number = msgspec.json.Decoder[Line](Line), 0
    has_begun = False
    for number, text in enumerate(read_lines(file), 1):
        if facts and text.startswith(SPAN):
            if has_begun:
                continue
            has_begun = True
        try:
            line = decode_line(text, decoder)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, PlanFileError) as error:
            mistake = _mistake(file) if number == 1 else None
            raise PlanFileError(f"{file}: {mistake or f'line {number}: {error}'}") from error
        if number == 1 and not isinstance(line, RunLine):
            raise PlanFileError(f"{file}: line 1: a recording begins with a line of type run")
        yield number, alignment.align(line)
    if not number:
        mistake = _mistake(file) or "the file is empty; a recording begins with a line of type run"
        raise PlanFileError(f"{file}: {mistake}")


def _mistake(file: Path) -> str | None:
    """What a file that is no recording is instead, if that is known."""
    with suppress(UserError):
        return mistaken(read_bytes(file), RECORDING)
    return None


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
    """Collects the lines of the servers of one run, whose clocks agree.

    Args:
        iterations: of how many of its last iterations the spans of a server are kept; None for all.
    """

    def __init__(self, iterations: int | None = None) -> None:
        self._spans = LatestSpans[Span](iterations)
        self._instants: list[InstantLine] = []
        self._absent: list[tuple[Server, InstantLine]] = []
        self._views: dict[int, ViewLine] = {}
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
                self._spans.add(Span.parse(line))
            case InstantLine(kind="standstill"):
                pass  # a stack is read, and not drawn
            case InstantLine(kind="failure", server=str(server)):
                self._absent.append((Server.parse(server), line))
            case InstantLine():
                if line.server:
                    Server.parse(line.server)
                self._instants.append(line)
            case SampleLine():
                self._samples.append((Server.parse(line.server), line))
            case DeathLine():
                Server.parse(line.server)
                self._instants.append(InstantLine("failure", line.time, line.server, f"{line.server} {line.reason}"))
            case ViewLine():
                for joined in line.joined:
                    Server.parse(joined)
                # Each that tells of a view has its own time.
                known = self._views.setdefault(line.epoch, line)
                self._views[line.epoch] = min(known, line, key=lambda each: each.time)
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
            instants=_distinct([*self._instants, *starmap(self._since, self._absent), *_instants(self._views)]),
            samples=tuple(sample for _, sample in samples),
            period=head.period,
            recoveries=tuple(recovery for _, recovery in recoveries),
        )

    def _since(self, server: Server, line: InstantLine) -> InstantLine:
        """A server that is dead when a run begins, or goes on, has not worked in vain: it died after its last work."""
        ends = (span.end for span in self._spans if span.server == server and span.end <= line.time)
        return msgspec.structs.replace(line, time=max(ends, default=line.time))


def _instants(views: Mapping[int, ViewLine]) -> Iterator[InstantLine]:
    """What views are on the time line: their beginnings, and the return of each server that is new in one.

    No server joins the view with which a run goes on. Those that were not in the view before are back all the same.
    """
    before: ViewLine | None = None
    for epoch, view in sorted(views.items()):
        new = set(view.joined) | set(view.servers).difference(before.servers if before else view.servers)
        before = view
        if epoch:
            name = f"view {epoch}"
            throughput = throughput_text(view.throughput, view.baseline)
            text = f"{name}: {plural(len(view.servers), 'server')}, {throughput}, {view.plan}; {view.cause}"
            yield InstantLine("view change", view.time, None, text, view.step)
            for server in sorted(new):
                yield InstantLine("rejoin", view.time, server, f"{server} is back in {name}")


def _distinct(instants: Iterable[InstantLine]) -> tuple[InstantLine, ...]:
    """Instants by time, each once: of a death several servers tell."""
    found = {(each.kind, each.server, each.text, each.time): each for each in instants}
    return tuple(sorted(found.values(), key=lambda each: each.time))
