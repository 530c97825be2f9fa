"""What a run leaves on disk while it runs: a recording per server, a JSON line per instruction and event."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

import msgspec

from recycle.job import Server
from recycle.plan.recording import EvaluationLine, InstantLine, IterationLine, Line, head_line, span_line
from recycle.plan.timeline import Span, Timeline
from recycle.runtime.errors import RunError
from recycle.runtime.recording import UNIT

Event = IterationLine | EvaluationLine


class EventFile:
    """A server's recording, written while the run goes on.

    Args:
        folder: where the files are; made if it is not there.
        server: whose file.
        title: what is run.
        failed: the servers that are dead from the start, if this is the file that says so.

    Raises:
        RunError: it cannot be written.
    """

    def __init__(self, folder: Path, server: Server, title: str, failed: Sequence[Server]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = (folder / f"{server}.jsonl").open("ab")
        except OSError as error:
            raise RunError(f"{folder}: cannot be written: {error.strerror}; choose another folder") from error
        self._failed = failed
        self._write([head_line(Timeline(title, UNIT, "measured", (), (), ()))])

    def write(self, event: Event, spans: Sequence[Span] = ()) -> None:
        """Add what was executed and an event; both are on their way to disk when this returns."""
        # What is dead is known from the start, and the run's clock only now.
        dead = [InstantLine("failure", spans[0].start, str(each), f"{each} is dead") for each in self._failed if spans]
        self._failed = () if spans else self._failed
        self._write([*dead, *map(span_line, spans), event])

    def _write(self, lines: Iterable[Line]) -> None:
        self._file.writelines(msgspec.json.encode(line) + b"\n" for line in lines)
        self._file.flush()
