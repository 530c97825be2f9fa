"""Traces of a job's servers: which are lost and which are back, and when."""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from recycle.errors import UserError
from recycle.faults.duration import parse_duration
from recycle.faults.errors import FaultError
from recycle.faults.menu import Fault, Faults, Kind
from recycle.faults.node_traces import FORMS, csv_lines
from recycle.job import Job, Server

REMOVE, ADD = "remove", "add"


class ServerChange(NamedTuple):
    """One line of a trace of servers.

    Attributes:
        line: its number.
        time: in seconds.
        change: REMOVE or ADD.
        servers: which are lost, or back.
    """

    line: int
    time: float
    change: str
    servers: tuple[Server, ...]


def decode_trace(content: bytes, job: Job, dead: Collection[Server] = ()) -> Faults:
    """Read the content of a trace: a removal kills, an addition lets a replacement join.

    Args:
        content: lines ``time,remove|add,server``, further servers behind the first, with or without a header.
        job: whose servers are meant.
        dead: the servers that take no part from the start.

    Raises:
        FaultError: a line cannot be read or makes no sense; the message has its number.
    """
    faults: list[Fault] = []
    for each in checked_changes(read_changes(content), job, dead):
        at = round(each.time, 3)
        if each.change == ADD:
            faults += (Fault(Kind.JOIN, (server,), at=at) for server in each.servers)
        else:
            faults.append(Fault(Kind.KILL, each.servers, at=at))
    return Faults(tuple(faults))


def read_changes(content: bytes) -> list[ServerChange]:
    """The lines ``time,remove|add,server`` of a trace.

    Raises:
        FaultError: a line cannot be read, the message has its number; or there is none.
    """
    lines = csv_lines(content)
    if lines and lines[0][1] == ["time", "change", "server"]:
        del lines[0]
    if not lines:
        raise FaultError("it is empty: give a trace with at least one failure")
    return [_change(number, fields) for number, fields in lines]


def _change(number: int, fields: list[str]) -> ServerChange:
    time, change, *names = (*fields, "", "")
    names = [name for name in names if name]
    if change not in (REMOVE, ADD) or not names:
        raise FaultError(
            f"line {number}: {', '.join(fields)}: write time,remove,W1_2 or time,add,W1_2; a study also reads {FORMS}"
        )
    try:
        servers = tuple(map(Server.parse, names))
    except UserError as error:
        raise FaultError(f"line {number}: {error}; for nodes, write node,start_days,end_days") from error
    try:
        return ServerChange(number, parse_duration(time, "time"), change, servers)
    except UserError as error:
        raise FaultError(f"line {number}: {error}") from error


def checked_changes(
    changes: Iterable[ServerChange], job: Job, dead: Collection[Server] = (), what: str = "line"
) -> Iterator[ServerChange]:
    """The changes, where they make sense.

    Args:
        changes: of a trace.
        job: whose servers it names.
        dead: the servers that take no part from the start.
        what: a change is in the file.

    Raises:
        FaultError: one makes no sense; the message has its number.
    """
    absent = set(dead)
    latest = 0.0
    for each in changes:
        try:
            job.require_servers(each.servers)
        except UserError as error:
            raise FaultError(f"{what} {each.line}: {error}") from error
        if each.time < latest:
            raise FaultError(f"{what} {each.line}: its time is before that of the line above; sort the lines by time")
        latest = each.time
        for server in each.servers:
            if (server in absent) is (each.change == REMOVE):
                state = "dead already; add it back first" if server in absent else "alive; remove it first"
                raise FaultError(f"{what} {each.line}: {each.change} of {server}, which is {state}")
            absent ^= {server}
        yield each
