"""Outages: when each place of a cluster was without a live server. What studies replay."""

from collections import deque
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from recycle.faults.errors import FaultError
from recycle.faults.file import TRACES, decode_faults
from recycle.faults.menu import Kind
from recycle.faults.rows import (
    ADD,
    MILLISECONDS,
    MOST_NODES,
    REMOVE,
    TraceRow,
    comments,
    is_server,
    natural,
    read_rows,
    refuse_misnamed,
    unit_of,
)
from recycle.faults.trace import server_changes, servers_of_nodes
from recycle.files import STANDARD, read_bytes
from recycle.job import Job, Server
from recycle.wording import plural

ROUNDED = 1e-3
"""Seconds by which dates may be off, whose fractions are cut where they are written as numbers."""

SHIPPED = ("language-model-cluster", "shared-gpus")
"""Traces that come with the package: they are named without a path."""


class NodeOutage(NamedTuple):
    """One place without a live server.

    Attributes:
        node: the place, from 0 on.
        start: seconds from the begin of the trace.
        end: likewise; the end of the trace if nobody came back.
    """

    node: int
    start: float
    end: float


class Outages(msgspec.Struct, frozen=True):
    """All outages of a cluster over some time.

    Attributes:
        name: where they are from.
        nodes: how many places there are.
        seconds: how long the trace lasts.
        entries: by start. Those of one place neither overlap nor touch.
        is_of_servers: whether places are a job's servers, by pipeline and then stage, and not any nodes.
        at_end: places that were lost at the very end, of which nothing is known behind it: no entries.
        without_length: outages that ended at the time at which they began: no entries.
        held: the places of each node, where nodes hold several servers of the job; empty otherwise.
    """

    name: str
    nodes: int
    seconds: float
    entries: tuple[NodeOutage, ...]
    is_of_servers: bool = False
    at_end: int = 0
    without_length: int = 0
    held: tuple[tuple[int, ...], ...] = ()

    @property
    def failures_per_second(self) -> float:
        """Of the whole cluster, outages from the start left out."""
        return sum(entry.start > 0 for entry in self.entries) / self.seconds

    def resampled(self, nodes: int, seed: int) -> "Outages":
        """The trace for another number of places, with its bursts.

        Of a larger cluster, as many blocks as it has are drawn, each with all its places; each further block is turned
        in time by a random part of the trace, and the last block is a random choice of places. A trace of servers stays
        as it is, and further places have no outages; nodes of several servers are drawn as a whole.
        """
        random = Random(seed)
        if self.is_of_servers:
            whole = [places for places in self.held if len(places) == len(self.held[0])]
            drawn = zip(whole, random.sample(whole, len(whole)), strict=True)
            moved = {place: other for old, new in drawn for place, other in zip(old, new, strict=True)}
            turned = (each._replace(node=moved.get(each.node, each.node)) for each in self.entries)
            kept = sorted((each for each in turned if each.node < nodes), key=lambda each: (each.start, each.node))
            return msgspec.structs.replace(self, nodes=nodes, entries=tuple(kept))
        entries: list[NodeOutage] = []
        for first in range(0, nodes, self.nodes):
            size = min(self.nodes, nodes - first)
            # All are drawn, so that the first ones are the same however many are taken.
            chosen = _first_of_sample(random, self.nodes, size if size == nodes else self.nodes)[:size]
            places = dict(zip(chosen, range(first, first + size), strict=True))
            shift = random.uniform(0, self.seconds) if first else 0.0
            for node, start, end in self.entries:
                if node in places:
                    entries += _turned(NodeOutage(places[node], start, end), shift, self.seconds)
        by_start = tuple(sorted(entries, key=lambda entry: entry.start))
        return msgspec.structs.replace(self, nodes=nodes, entries=by_start)


def load_outages(source: str, job: Job | None = None, servers: int | None = None) -> Outages:
    """Read a trace of any known form, a trace of servers, a fault file, or one that comes with the package.

    Args:
        source: a path, or the name of a trace of the package.
        job: whose servers a trace may name, and whose servers a trace is of that names no more and does not say of how
            many it is; None for a trace of those that it names.
        servers: that the trace is of, where it does not say.

    Raises:
        UserError: it cannot be read.
        FaultError: it is of no known form, empty, or makes no sense; the message has the line and the remedy.
    """
    if source in SHIPPED:
        content = (resources.files("recycle.faults") / "data" / f"{source}.csv").read_bytes()
    elif source != str(STANDARD) and Path(source).suffix not in (".toml", *TRACES):
        raise FaultError(
            f"{source}: its name has to end in .toml, {', '.join(TRACES)}, or be one of {', '.join(SHIPPED)}"
        )
    else:
        content = read_bytes(Path(source))
    try:
        rows = _rows_of_faults(content) if source.endswith(".toml") else read_rows(content)
        facts = comments(content)
        held = None if job is None else servers_of_nodes(job, facts)
        if not any(is_server(name) for row in rows for name in row.names):
            refuse_misnamed(content)
            if job is not None and held is not None:
                if servers is not None:
                    raise FaultError(
                        f"{servers} servers: a trace that says how many a node has is of this job's; leave them out"
                    )
                return _on_servers(_outages(source, rows, facts), job, held)
            return _outages(source, rows, _with_servers(rows, facts, job, servers), given=servers is not None)
        if job is None:
            raise FaultError("it is of servers: give the job that they are of")
        if servers is not None:
            raise FaultError(
                f"{servers} servers: its names are those of this job's servers; leave out how many they are"
            )
        what = "fault" if source.endswith(".toml") else unit_of(content)
        outages = _outages(source, _of_places(rows, job, what), facts | {"nodes": job.pipelines * job.depth})
        return msgspec.structs.replace(outages, is_of_servers=True)
    except FaultError as error:
        raise FaultError(f"{source}: {error}") from error


def _on_servers(outages: Outages, job: Job, held: Sequence[Sequence[Server]]) -> Outages:
    """The outages of a job's servers, of which each node holds several."""
    if outages.nodes > len(held):
        raise FaultError(
            f"it is of {outages.nodes} nodes with {plural(len(held[0]), 'server')} each, and the job has "
            f"{plural(len(job.servers()), 'server')}: leave out nodes that are not of this job"
        )
    number = {server: place for place, server in enumerate(job.servers())}
    places = tuple(tuple(number[server] for server in each) for each in held)
    entries = [each._replace(node=place) for each in outages.entries for place in places[each.node]]
    entries.sort(key=lambda entry: (entry.start, entry.node))
    return msgspec.structs.replace(outages, nodes=len(number), entries=tuple(entries), is_of_servers=True, held=places)


def _rows_of_faults(content: bytes) -> list[TraceRow]:
    rows = []
    for number, fault in enumerate(decode_faults(content).entries, 1):
        if not (fault.kind.ends_server or fault.kind is Kind.JOIN):
            continue
        if fault.at is None:
            raise FaultError(f"fault {number}, {fault}: a study has no steps; write at = instead")
        change = ADD if fault.kind is Kind.JOIN else REMOVE
        rows.append((fault.at, TraceRow(number, f"{fault.at}s", change, tuple(map(str, fault.servers)))))
    return [row for _, row in sorted(rows, key=lambda each: each[0])]


def _of_places(rows: Sequence[TraceRow], job: Job, what: str) -> list[TraceRow]:
    """With numbers of places for servers, all there at the start, and all times in milliseconds."""
    numbered = [TraceRow(0, "0", ADD, tuple(map(str, range(job.pipelines * job.depth))))]
    for line, time, change, servers in server_changes(rows, job, what=what):
        names = tuple(str(server.pipeline * job.depth + server.stage) for server in servers)
        numbered.append(TraceRow(line, repr(time * MILLISECONDS["seconds"]), change, names))
    return numbered


def _with_servers(
    rows: Sequence[TraceRow], facts: dict[str, float], job: Job | None, servers: int | None
) -> dict[str, float]:
    """With how many servers a trace is of: what it says, what is given, or what follows from what it names."""
    if servers is not None:
        if servers > MOST_NODES:
            raise FaultError(f"{servers} servers: give {MOST_NODES} at most")
        if facts.get("nodes", servers) != servers:
            raise FaultError(
                f"{servers} servers are given, and the trace says {facts['nodes']:g}; leave one of them out"
            )
        return facts | {"nodes": servers}
    # Where servers are added at the start, or counted, all of them are there.
    if "nodes" in facts or job is None or not rows or rows[0].change == ADD:
        return facts
    named, size = len({name for row in rows for name in row.names}), job.pipelines * job.depth
    if named > size:
        raise FaultError(
            f"it names {plural(named, 'server')} that failed, and does not say of how many; give --servers, or a line "
            "# nodes N"
        )
    return facts | {"nodes": size}


def _outages(source: str, rows: Sequence[TraceRow], facts: dict[str, float], *, given: bool = False) -> Outages:
    """The outages of a trace.

    Args:
        source: where it is from.
        rows: its lines.
        facts: what it says of itself, or is given for that.
        given: whether the number of its nodes is given.
    """
    if all(row.change == ADD for row in rows):
        raise FaultError(
            f"its {plural(len(rows), 'line')} add servers or nodes, and none removes one: give a trace with at least "
            "one failure"
        )
    places = _NodePlaces()
    latest = 0.0
    for row in rows:
        time = float(row.time) / 1000
        if time < latest:
            raise FaultError(f"line {row.line}: its time is before that of the line above; sort the lines by time")
        latest = time
        for name in row.names:
            places.change(name, row.change, time)
    seconds = facts["days"] * 86_400 if "days" in facts else latest
    if seconds < latest < seconds + ROUNDED:
        seconds = latest
    said = facts.get("nodes", places.count)
    nodes = int(said)
    if nodes != said or not 0 < nodes <= MOST_NODES:
        raise FaultError(f"# nodes {said:g}: give a whole number from 1 to {MOST_NODES}")
    if places.count > nodes:
        if given:
            raise FaultError(f"{nodes} servers: it names {places.count}; give as many at least")
        raise FaultError(f"it names {places.count} nodes, and says that there are {nodes}; correct it")
    if not seconds and "days" not in facts:
        raise FaultError("all that happens in it is at its begin; say how long it lasts in a line # days N")
    if not latest <= seconds or not seconds:
        raise FaultError(f"it lasts {seconds:g} s, and its last event is at {latest:g} s; correct # days")
    entries = sorted(places.outages(seconds), key=lambda entry: (entry.start, entry.node))
    at_end = places.lost_at(seconds)
    return Outages(source, nodes, seconds, tuple(entries), at_end=at_end, without_length=places.without_length)


class _NodePlaces:
    """Which node is in which place: who comes back takes its own, and a stranger that of the longest lost.

    Places are in the order of the names of their first nodes, whatever the order in which a trace names them.

    Attributes:
        without_length: outages that ended at the time at which they began.
    """

    def __init__(self) -> None:
        self.without_length = 0
        self._first: list[str] = []
        self._of: dict[str, int] = {}
        self._lost: deque[int] = deque()
        self._since: dict[int, float] = {}
        self._outages: dict[int, list[NodeOutage]] = {}

    def change(self, name: str, change: str, time: float) -> None:
        place = self._of.get(name)
        if place is None:
            place = self._place_of_stranger(name, change, time)
        if change == REMOVE and place not in self._since:
            self._since[place] = time
            self._lost.append(place)
        elif change == ADD and place in self._since:
            self._lost.remove(place)
            self._end_outage(place, time)

    def outages(self, seconds: float) -> Iterator[NodeOutage]:
        """All of them, with those that last to the end."""
        for place in list(self._since):
            if self._since[place] < seconds:
                self._end_outage(place, seconds)
        order = sorted(range(self.count), key=lambda place: natural(self._first[place]))
        for number, place in enumerate(order):
            yield from (each._replace(node=number) for each in self._outages.get(place, ()))

    def lost_at(self, seconds: float) -> int:
        """How many places were lost at a time and not yet found."""
        return sum(start == seconds for start in self._since.values())

    @property
    def count(self) -> int:
        """How many places there are."""
        return len(self._first)

    def _end_outage(self, place: int, time: float) -> None:
        start = self._since.pop(place)
        outages = self._outages.setdefault(place, [])
        if outages and outages[-1].end == start:
            start = outages.pop().start
        if start < time:
            outages.append(NodeOutage(place, start, time))
        else:
            self.without_length += 1

    def _place_of_stranger(self, name: str, change: str, time: float) -> int:
        if change == ADD and self._lost:
            place = self._lost[0]
            for other in [other for other, number in self._of.items() if number == place]:
                del self._of[other]
        else:
            place = self.count
            self._first.append(name)
            if change == ADD and time > 0:
                self._since[place] = 0.0
                self._lost.append(place)
        self._of[name] = place
        return place


def _first_of_sample(random: Random, total: int, size: int) -> list[int]:
    """The first of ``random.sample(range(total), total)``, in a time that goes by their number."""
    if size == total:
        return random.sample(range(total), total)
    moved: dict[int, int] = {}
    chosen = []
    for left in range(total, total - size, -1):
        place = random.randrange(left)
        chosen.append(moved.get(place, place))
        moved[place] = moved.get(left - 1, left - 1)
    return chosen


def _turned(outage: NodeOutage, shift: float, seconds: float) -> list[NodeOutage]:
    """An outage on a circle of time, as one or two on the line. What did not overlap does not overlap then either.

    Args:
        outage: of a trace.
        shift: by how much later it begins, in seconds.
        seconds: how long the trace lasts.
    """
    node, start, end = outage
    cut = seconds - shift
    # The begin and the end of the trace come to the same time, however that is rounded.
    later = seconds - cut
    pieces = (
        (start + later, min(min(end, cut) + later, seconds)),
        (max(start, cut) - cut, end - cut),
    )
    return [NodeOutage(node, *piece) for piece in pieces if piece[0] < piece[1]]
