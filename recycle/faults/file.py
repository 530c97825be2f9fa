"""Fault files: the menu as TOML, and the three forms in which faults can be given."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import msgspec

from recycle.errors import UserError
from recycle.faults.check import check_faults
from recycle.faults.duration import parse_duration
from recycle.faults.errors import FaultError
from recycle.faults.menu import Fault, Faults, Kind
from recycle.faults.pattern import InstructionPattern
from recycle.faults.trace import decode_trace
from recycle.files import read_bytes
from recycle.job import Job, Server
from recycle.kinds import FAULTS, read_toml

TRACES = (".csv", ".txt", ".json")

Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
Number = Annotated[int, msgspec.Meta(ge=1, le=10**12)]


class FaultDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ``[[fault]]`` table; servers, instructions and durations in their text forms, iterations counted from 1."""

    kind: Kind
    server: str | None = None
    servers: list[str] | None = None
    iteration: Number | None = None
    at: str | float | None = None
    instruction: str | None = None
    duration: str | float | None = None
    factor: float | None = None
    incarnation: Count = 0


class FaultsDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole fault file."""

    fault: list[FaultDocument] = []


def load_faults(path: Path, job: Job, iterations: int, speed: float = 60.0, dead: Collection[Server] = ()) -> Faults:
    """Read a fault file, a trace of servers or a public preemption trace, and check it against a job.

    Args:
        path: ``.toml`` for a fault file, ``.csv``, ``.txt`` or ``.json`` for a trace.
        job: that is trained.
        iterations: how many are run.
        speed: by how much a public trace, which lasts hours, is replayed faster than it was recorded.
        dead: the servers that take no part from the start.

    Raises:
        UserError: the file cannot be read.
        FaultError: it is of no known form, or has a fault that could never fire.
    """
    try:
        if path.suffix == ".toml":
            faults = decode_faults(read_bytes(path))
        elif path.suffix in TRACES:
            faults = decode_trace(read_bytes(path), job, speed, dead)
        else:
            raise FaultError("its name has to end in .toml for a fault file, or .csv, .txt or .json for a trace")
        check_faults(faults.entries, job, iterations, dead)
    except FaultError as error:
        raise FaultError(f"{path}: {error}") from error
    return faults


def decode_faults(content: bytes) -> Faults:
    """Read the content of a fault file.

    Raises:
        FaultError: it is no TOML, or a field has no sense; the message names it.
    """
    try:
        document = msgspec.convert(read_toml(content, FAULTS), FaultsDocument)
    except msgspec.ValidationError as error:
        raise FaultError(f"{error}; docs/reference/faults.md lists every field") from error
    except UserError as error:
        raise FaultError(str(error)) from error
    entries = []
    for number, each in enumerate(document.fault):
        try:
            entries.append(_fault(each))
        except UserError as error:
            raise FaultError(f"fault {number + 1}: {error}") from error
    return Faults(tuple(entries))


def _fault(document: FaultDocument) -> Fault:
    if document.server is not None and document.servers is not None:
        raise FaultError(f"server is {document.server!r} and servers is given too: leave one of them out")
    names = document.servers if document.server is None else [document.server]
    return Fault(
        kind=document.kind,
        servers=tuple(map(Server.parse, names or ())),
        step=None if document.iteration is None else document.iteration - 1,
        at=None if document.at is None else parse_duration(document.at, "at"),
        instruction=None if document.instruction is None else InstructionPattern.parse(document.instruction),
        duration=None if document.duration is None else parse_duration(document.duration, "duration"),
        factor=document.factor,
        incarnation=document.incarnation,
    )
