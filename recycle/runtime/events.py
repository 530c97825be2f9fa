"""What a run leaves on disk while it runs: one JSON line per event and server, in a file per server."""

from pathlib import Path
from typing import IO

import msgspec

from recycle.job import Server
from recycle.plan.instruction import Instruction
from recycle.plan.timeline import Span, Timeline
from recycle.runtime.errors import RunError
from recycle.runtime.recording import measured_timeline


class Started(msgspec.Struct, frozen=True, tag="started", tag_field="event"):
    """A server's first line.

    Attributes:
        server: who writes this file.
        epoch: of the view.
        plan: the plan's title.
    """

    server: str
    epoch: int
    plan: str


class Iterated(msgspec.Struct, frozen=True, tag="iterated", tag_field="event"):
    """An iteration of a server.

    Attributes:
        server: whose.
        step: the iteration.
        seconds: how long it took here.
        losses: of the micro-batches whose last stage ran here.
        peak_memory: the most that was held for micro-batches, in the job's unit.
        spans: what was executed, in microseconds of the machine's monotonic clock, as (instruction, start, end).
    """

    server: str
    step: int
    seconds: float
    losses: list[float]
    peak_memory: int
    spans: list[tuple[str, float, float]]


class Evaluated(msgspec.Struct, frozen=True, tag="evaluated", tag_field="event"):
    """Losses on held-out text of the micro-batches whose last stage ran here.

    Attributes:
        server: whose.
        step: how many iterations were made before.
        losses: one per micro-batch.
    """

    server: str
    step: int
    losses: list[float]


Event = Started | Iterated | Evaluated


class EventFile:
    """A server's file of events.

    Args:
        folder: where the files are; made if it is not there.
        server: whose file.

    Raises:
        RunError: it cannot be written.
    """

    def __init__(self, folder: Path, server: Server) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = (folder / f"{server}.jsonl").open("ab")
        except OSError as error:
            raise RunError(f"{folder}: cannot be written: {error.strerror}; choose another folder") from error

    def write(self, event: Event) -> None:
        """Add a line; it is on its way to disk when this returns."""
        self._file.write(msgspec.json.encode(event) + b"\n")
        self._file.flush()


def read_events(path: Path) -> list[Event]:
    """The events of a file. A last line that was cut short by the end of its writer is left out.

    Raises:
        RunError: it cannot be read, or another line is no event.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error
    events = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            events.append(msgspec.json.decode(line, type=Event))
        except msgspec.DecodeError as error:
            raise RunError(f"{path}, line {number}: this is no event: {error}") from error
    return events


def read_timeline(folder: Path) -> Timeline:
    """The measured time line of a run from the files of its servers.

    Raises:
        RunError: there are none, or one cannot be read.
    """
    lanes = []
    title = ""
    for path in sorted(folder.glob("W*.jsonl")):
        lane: list[Span] = []
        for event in read_events(path):
            if isinstance(event, Started):
                title = event.plan
            if isinstance(event, Iterated):
                server = Server.parse(event.server)
                for text, start, end in event.spans:
                    instruction = Instruction.parse(text)
                    kind = "communication" if instruction.op.is_transfer else "compute"
                    lane.append(Span(server, kind, instruction, start, end, event.step))  # type: ignore[arg-type]
        lanes.append(lane)
    if not lanes:
        raise RunError(f"{folder}: there are no events in it; give the folder 'events' of a run")
    return measured_timeline(title, lanes)
