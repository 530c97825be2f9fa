"""Recordings of whole time lines, for tests and benchmarks: a run writes its own line by line."""

from pathlib import Path

import msgspec

from recycle.files import write_whole
from recycle.record.recording import FORMAT, VERSION, RunLine
from recycle.record.timeline import Timeline


def encode_recording(timeline: Timeline) -> bytes:
    """The content of a recording: the head, and then a line per span, instant, sample and recovery."""
    head = RunLine(FORMAT, VERSION, timeline.title, timeline.time_unit, timeline.source, timeline.period)
    spans = (span.line() for span in timeline.spans)
    lines = (head, *spans, *timeline.instants, *timeline.samples, *timeline.recoveries)
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def save_recording(timeline: Timeline, path: Path) -> None:
    """Write a recording, whole or not at all.

    Raises:
        UserError: the file cannot be written.
    """
    write_whole(path, encode_recording(timeline))
