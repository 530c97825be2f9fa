"""Recordings of whole time lines, for tests and benchmarks: a run writes its own line by line."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from recycle.files import write_whole
from recycle.record.recording import FORMAT, VERSION, RunLine
from recycle.record.timeline import Timeline


def encode_recording(timeline: Timeline) -> bytes:
    """The content of a recording: the head, and then a line per span, instant, sample and recovery."""
    head = RunLine(FORMAT, VERSION, timeline.title, timeline.time_unit, timeline.source, timeline.period)
    spans = (span.line() for span in timeline.spans)
    return encode_lines([head, *spans, *timeline.instants, *timeline.samples, *timeline.recoveries])


def encode_lines(lines: Iterable[msgspec.Struct]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def write_events(run: Path, files: Mapping[str, Iterable[msgspec.Struct]]) -> None:
    """The recordings in a run's folder, by the names of those who write them."""
    (run / "events").mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (run / "events" / f"{name}.jsonl").write_bytes(encode_lines(lines))


def save_recording(timeline: Timeline, path: Path) -> None:
    """Write a recording, whole or not at all.

    Raises:
        UserError: the file cannot be written.
    """
    write_whole(path, encode_recording(timeline))
