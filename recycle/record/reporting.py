"""What a run leaves on disk while it runs: a recording per process, a JSON line per instruction and event."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from recycle.errors import UserError
from recycle.job import Server
from recycle.record.recorder import UNIT
from recycle.record.recording import (
    DeathLine,
    EvaluationLine,
    InstantLine,
    IterationLine,
    Line,
    RecoveryLine,
    ViewLine,
    head_line,
    span_line,
)
from recycle.record.timeline import Span, Timeline

Event = IterationLine | EvaluationLine | DeathLine | ViewLine | RecoveryLine | InstantLine


class EventFile:
    """A process's recording, written while the run goes on. A disk that is full ends the recording and not the run.

    Args:
        folder: where the files are; made if it is not there.
        name: of the process: a server's, or whoever else has something to say.
        title: what is run.
        failed: the servers that are dead from the start, if this is the file that says so.

    Raises:
        UserError: it cannot be written.
    """

    def __init__(self, folder: Path, name: str, title: str, failed: Sequence[Server] = ()) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = (folder / f"{name}.jsonl").open("ab")
        except OSError as error:
            raise UserError(f"{folder}: cannot be written: {error.strerror}; choose another folder") from error
        self._failed = failed
        self._write([head_line(Timeline(title, UNIT, "measured", (), (), ()))])

    def write(self, event: Event, spans: Sequence[Span] = ()) -> None:
        """Add what was executed and an event; both are on their way to disk when this returns."""
        # What is dead is known from the start, and the run's clock only now.
        dead = [InstantLine("failure", spans[0].start, str(each), f"{each} is dead") for each in self._failed if spans]
        self._failed = () if spans else self._failed
        self._write([*dead, *map(span_line, spans), event])

    def close(self) -> None:
        """Write no more."""
        with suppress(OSError):
            self._file.close()

    def _write(self, lines: Iterable[Line]) -> None:
        content = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        with suppress(OSError):
            self._file.write(content)
            self._file.flush()


class Reporter:
    """Tells what happens on a server: its recording gets everything, and whoever watches the run the events.

    Args:
        file: the server's recording; None for a process that does not speak for its server.
        report: sends an event to who watches.
    """

    def __init__(self, file: EventFile | None, report: Callable[[bytes], None]) -> None:
        self._file = file
        self._report = report

    def tell(self, event: Event, spans: Sequence[Span] = ()) -> None:
        """Tell of an event, and of what was executed before it."""
        if self._file is not None:
            self._file.write(event, spans)
            self._report(msgspec.json.encode(event))
