"""Traces as faults of a job's servers; in the trace are servers' own names, or those of a public trace's nodes."""

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from recycle.digits import parse_number
from recycle.errors import UserError
from recycle.faults.duration import parse_duration
from recycle.faults.errors import FaultError
from recycle.faults.menu import Fault, Faults, Kind
from recycle.faults.rows import ADD, PER_NODE, REMOVE, TraceRow, comments, is_server, natural, read_rows, unit_of
from recycle.job import Job, Server

STAGES, PEERS = f"stages{PER_NODE}", f"peers{PER_NODE}"
"""What a comment of a trace calls servers that are on one node: neighbouring stages of a pipeline, or peers."""


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
        changes = server_changes(rows, job, dead, unit_of(content))
        return Faults(tuple(fault for each in changes for fault in _changes(each.change, each.servers, each.time)))
    if not (math.isfinite(speed) and speed > 0):
        raise FaultError(f"speed is {speed:g}: give a number above 0, for example 60 to replay an hour in a minute")
    held = servers_of_nodes(job, comments(content)) or [(server,) for server in job.servers()]
    return _of_nodes(rows, _Places(held, dead, (name for row in rows for name in row.names)), speed)


def servers_of_nodes(job: Job, facts: Mapping[str, float]) -> list[tuple[Server, ...]] | None:
    """The servers of each node of a job, in the order of ranks.

    Args:
        job: whose servers nodes hold.
        facts: what a trace says in its comments.

    Returns:
        None if the trace does not say that a node has several servers.

    Raises:
        FaultError: what it says makes no sense.
    """
    said = {name: number for name, number in facts.items() if name.endswith(PER_NODE)}
    if not said:
        return None
    (name, number), *others = said.items()
    if others or name not in (STAGES, PEERS):
        raise FaultError(f"# {' and # '.join(said)}: write one line # {STAGES} N or # {PEERS} N")
    servers = sorted(job.servers(), key=lambda each: each if name == STAGES else (each.stage, each.pipeline))
    if number not in range(1, len(servers) + 1):
        raise FaultError(f"# {name} {number:g}: give a whole number from 1 to {len(servers)}, the job's servers")
    size = int(number)
    return [tuple(servers[first : first + size]) for first in range(0, len(servers), size)]


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


def server_changes(
    rows: Iterable[TraceRow], job: Job, dead: Collection[Server] = (), what: str = "line"
) -> Iterator[ServerChange]:
    """What a trace of a job's servers says, line by line.

    Args:
        rows: its lines.
        job: whose servers it names.
        dead: the servers that take no part from the start.
        what: a line is in the file.

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
            raise FaultError(f"{what} {row.line}: {error}") from error
        for server in servers:
            if (server in absent) is (row.change == REMOVE):
                state = "dead already; add it back first" if server in absent else "alive; remove it first"
                raise FaultError(f"{what} {row.line}: {row.change} of {server}, which is {state}")
            absent ^= {server}
        yield ServerChange(row.line, time, row.change, servers)


def _of_nodes(rows: Sequence[TraceRow], places: "_Places", speed: float) -> Faults:
    moments: dict[float, list[TraceRow]] = {}
    for row in rows:
        try:
            time = parse_duration(float(row.time) / 1000 / speed, "time")
        except UserError as error:
            raise FaultError(f"line {row.line}: {error}") from error
        moments.setdefault(time, []).append(row)
    faults = []
    for time, changes in moments.items():
        # Published traces have a line for each node; what has the same time happens at once.
        lost: list[Server] = []
        for row in changes:
            for name in row.names:
                if row.change == ADD:
                    places.add(name)
                else:
                    lost += places.remove(name)
        faults += _changes(REMOVE, tuple(lost), time) + _changes(ADD, places.fill(), time)
    return Faults(tuple(faults))


class _Places:
    """Which node holds which servers.

    The first nodes to appear are those of the start, in the order of their names; later ones replace the lost, in turn.

    Args:
        held: the servers of each node.
        dead: the servers that take no part from the start.
        names: of nodes, in the order in which they appear.
    """

    def __init__(self, held: Iterable[Sequence[Server]], dead: Collection[Server], names: Iterable[str]) -> None:
        held = list(held)
        live = [[server for server in each if server not in dead] for each in held]
        gone = [[server for server in each if server in dead] for each in held]
        there = list(filter(None, live))
        first = list(dict.fromkeys(names))[: len(there)]
        self._lost = deque(filter(None, gone))
        self._servers = dict(zip(sorted(first, key=natural), there, strict=False))
        self._spares: dict[str, None] = {}

    def remove(self, name: str) -> Sequence[Server]:
        """The servers of a node that is lost."""
        self._spares.pop(name, None)
        servers = self._servers.pop(name, [])
        if servers:
            self._lost.append(servers)
        return servers

    def add(self, name: str) -> None:
        """A node is there: one of the start, or a spare until it is needed."""
        if name not in self._servers:
            self._spares[name] = None

    def fill(self) -> tuple[Server, ...]:
        """Give lost servers to spares, the longest lost first to the one that waits longest."""
        filled: list[Server] = []
        while self._lost and self._spares:
            servers, name = self._lost.popleft(), next(iter(self._spares))
            del self._spares[name]
            self._servers[name] = servers
            filled += servers
        return tuple(filled)


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
