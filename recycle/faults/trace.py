"""Traces as faults of a job's servers; in the trace are servers' own names, or those of a public trace's nodes."""

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from recycle.errors import UserError
from recycle.faults.duration import parse_duration
from recycle.faults.errors import FaultError
from recycle.faults.menu import Fault, Faults, Kind
from recycle.faults.rows import ADD, REMOVE, TraceRow, is_server, parse_number, read_rows
from recycle.job import Job, Server


def decode_trace(content: bytes, job: Job, speed: float, dead: Collection[Server] = ()) -> Faults:
    """Read the content of a trace: a removal kills, an addition lets a replacement join.

    A trace is of this job's servers if it names one of them, with times in seconds or with a unit; otherwise it is a
    public one, with nodes' names and times in milliseconds.

    Args:
        content: lines ``time,remove|add,name``, further names behind the first, with or without a header; or a public
            trace of another known form (``recycle.faults.rows``).
        job: whose servers are meant.
        speed: by how much a public trace is replayed faster.
        dead: the servers that take no part from the start.

    Raises:
        FaultError: a line cannot be read or makes no sense; the message has its number.
    """
    rows = read_rows(content)
    if any(is_server(name) for row in rows for name in row.names):
        changes = server_changes(rows, job, dead)
        return Faults(tuple(fault for each in changes for fault in _changes(each.change, each.servers, each.time)))
    if not (math.isfinite(speed) and speed > 0):
        raise FaultError(f"speed is {speed:g}: give a number above 0, for example 60 to replay an hour in a minute")
    return _of_nodes(rows, job, speed, dead)


class ServerChange(NamedTuple):
    """One line of a trace of servers.

    Attributes:
        line: its number.
        time: in seconds.
        change: REMOVE or ADD.
        servers: which of the job's are lost, or back.
    """

    line: int
    time: float
    change: str
    servers: tuple[Server, ...]


def server_changes(rows: Iterable[TraceRow], job: Job, dead: Collection[Server] = ()) -> Iterator[ServerChange]:
    """What a trace of a job's servers says, line by line.

    Args:
        rows: its lines.
        job: whose servers it names.
        dead: the servers that take no part from the start.

    Raises:
        FaultError: a line makes no sense; the message has its number.
    """
    absent = set(dead)
    latest = 0.0
    for row in rows:
        try:
            time = parse_duration(_number(row.time), "time")
            if time < latest:
                raise FaultError("its time is before that of the line above; sort the lines by time")
            latest = time
            servers = tuple(map(Server.parse, row.names))
            job.require_servers(servers)
        except UserError as error:
            raise FaultError(f"line {row.line}: {error}") from error
        for server in servers:
            if (server in absent) is (row.change == REMOVE):
                state = "dead already; add it back first" if server in absent else "alive; remove it first"
                raise FaultError(f"line {row.line}: {row.change} of {server}, which is {state}")
            absent ^= {server}
        yield ServerChange(row.line, time, row.change, servers)


def _of_nodes(rows: Sequence[TraceRow], job: Job, speed: float, dead: Collection[Server]) -> Faults:
    moments: dict[float, list[TraceRow]] = {}
    for row in rows:
        try:
            time = parse_duration(float(row.time) / 1000 / speed, "time")
        except UserError as error:
            raise FaultError(f"line {row.line}: {error}") from error
        moments.setdefault(time, []).append(row)
    places = _Places(job, dead)
    faults = []
    for time, changes in moments.items():
        # Published traces have a line for each node; what has the same time happens at once.
        lost: list[Server] = []
        for row in changes:
            for name in row.names:
                if row.change == ADD:
                    places.add(name)
                elif (server := places.remove(name)) is not None:
                    lost.append(server)
        faults += _changes(REMOVE, tuple(lost), time) + _changes(ADD, places.fill(), time)
    return Faults(tuple(faults))


class _Places:
    """Which node is which server. The first to appear are those of the start; later ones replace the lost, in turn."""

    def __init__(self, job: Job, dead: Collection[Server]) -> None:
        self._first = deque(server for server in job.servers() if server not in dead)
        self._lost = deque(sorted(dead))
        self._servers: dict[str, Server] = {}
        self._spares: dict[str, None] = {}
        self._seen: set[str] = set()

    def remove(self, name: str) -> Server | None:
        """The server that a node was, if it was one."""
        self._see(name)
        self._spares.pop(name, None)
        server = self._servers.pop(name, None)
        if server is not None:
            self._lost.append(server)
        return server

    def add(self, name: str) -> None:
        """A node is there: one of the start, or a spare until it is needed."""
        self._see(name)
        if name not in self._servers:
            self._spares[name] = None

    def fill(self) -> tuple[Server, ...]:
        """Give lost servers to spares, the longest lost first to the one that waits longest."""
        filled = []
        while self._lost and self._spares:
            server, name = self._lost.popleft(), next(iter(self._spares))
            del self._spares[name]
            self._servers[name] = server
            filled.append(server)
        return tuple(filled)

    def _see(self, name: str) -> None:
        if name not in self._seen and self._first:
            self._servers[name] = self._first.popleft()
        self._seen.add(name)


def _changes(change: str, servers: tuple[Server, ...], time: float) -> list[Fault]:
    at = round(time, 3)
    if change == ADD:
        return [Fault(Kind.JOIN, (server,), at=at) for server in servers]
    return [Fault(Kind.KILL, servers, at=at)] if servers else []


def _number(text: str) -> str | float:
    try:
        return parse_number(text)
    except ValueError:
        return text
