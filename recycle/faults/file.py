"""Fault files: the menu as TOML, the two forms in which faults can be given, and whether they can happen in a job."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec

from recycle.errors import UserError
from recycle.faults.duration import parse_duration
from recycle.faults.errors import FaultError
from recycle.faults.menu import Fault, Faults, Kind
from recycle.faults.pattern import InstructionPattern
from recycle.faults.server_trace import decode_trace
from recycle.files import read_bytes
from recycle.job import Job, Server
from recycle.keys import convert
from recycle.kinds import FAULTS, read_toml

TRACES = (".csv", ".txt")

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


def load_faults(path: Path, job: Job, iterations: int, dead: Collection[Server] = ()) -> Faults:
    """Read a fault file or a trace of servers, and check it against a job.

    Args:
        path: ``.toml`` for a fault file, ``.csv`` or ``.txt`` for a trace.
        job: that is trained.
        iterations: how many are run.
        dead: the servers that take no part from the start.

    Raises:
        UserError: the file cannot be read.
        FaultError: it is of no known form, or has a fault that could never fire.
    """
    try:
        if path.suffix == ".toml":
            faults = decode_faults(read_bytes(path))
        elif path.suffix in TRACES:
            faults = decode_trace(read_bytes(path), job, dead)
        else:
            raise FaultError("its name has to end in .toml for a fault file, or .csv or .txt for a trace")
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
        document = convert(read_toml(content, FAULTS), FaultsDocument)
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


def check_faults(faults: Sequence[Fault], job: Job, iterations: int, dead: Collection[Server] = ()) -> None:
    """Refuse faults that could never fire.

    Args:
        faults: in the order of their file.
        job: that is trained.
        iterations: how many are run.
        dead: the servers that take no part from the start.

    Raises:
        FaultError: the first that could never fire.
    """
    for number, fault in enumerate(faults):
        with _named(number, fault):
            _require_possible(fault, job, iterations)
            if fault.kind is Kind.JOIN:
                _require_absent(fault, faults, dead)
            else:
                _require_present(fault, faults, dead)
    for number, fault in enumerate(faults):
        with _named(number, fault):
            _require_incarnation(fault, faults)


@contextmanager
def _named(number: int, fault: Fault) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise FaultError(f"fault {number + 1}, {fault}: {error}") from error


def _require_possible(fault: Fault, job: Job, iterations: int) -> None:
    job.require_servers(fault.servers)
    if fault.step is not None and fault.step >= iterations:
        raise FaultError(
            f"iteration is {fault.step + 1}: the run has iterations 1 to {iterations}; choose one, or run longer"
        )
    if fault.instruction is not None:
        for server in fault.servers:
            fault.instruction.require_possible(job, server)


def _require_absent(join: Fault, faults: Sequence[Fault], dead: Collection[Server]) -> None:
    (server,) = join.servers
    if server in dead:
        return
    if not any(each.kind.ends_server and server in each.servers and not _is_before(join, each) for each in faults):
        raise FaultError(
            f"no fault before it ends {server}, which cannot join while it is alive; "
            f"add a kill of {server} before it, or leave the join out"
        )


def _require_present(fault: Fault, faults: Sequence[Fault], dead: Collection[Server]) -> None:
    for server in fault.servers:
        if server in dead and not any(
            each.kind is Kind.JOIN and server in each.servers and not _is_before(fault, each) for each in faults
        ):
            raise FaultError(f"{server} is dead from the start, and no join comes before; choose a live server")


def _require_incarnation(fault: Fault, faults: Sequence[Fault]) -> None:
    if not fault.is_of_worker:
        return
    for server in fault.servers:
        joins = [each for each in faults if each.kind is Kind.JOIN and server in each.servers]
        lives = sum(_is_before(join, fault) for join in joins)
        if fault.incarnation < lives:
            raise FaultError(
                f"incarnation is {fault.incarnation}, and {server} was replaced before {fault.when}; "
                f"write incarnation = {lives}"
            )


def _is_before(one: Fault, other: Fault) -> bool:
    """Whether one comes before the other for certain; steps and times cannot be compared."""
    if one.step is not None and other.step is not None:
        return one.step < other.step
    return one.at is not None and other.at is not None and one.at < other.at
