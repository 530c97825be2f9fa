"""Outages: when each place of a cluster was without a live server. What studies replay."""

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from recycle.errors import JobError, UserError
from recycle.faults.errors import FaultError
from recycle.faults.file import TRACES, decode_faults
from recycle.faults.menu import Kind
from recycle.faults.node_traces import MOST_NODES, UNITS, NamedOutage, NodeTrace, comments, natural, read_nodes
from recycle.faults.server_trace import ADD, REMOVE, ServerChange, checked_changes, read_changes
from recycle.files import STANDARD, read_bytes
from recycle.job import Job, Server
from recycle.wording import plural

STAGES, PEERS = "stages-per-node", "peers-per-node"
"""What a comment of a trace calls servers that are on one node: neighbouring stages of a pipeline, or peers."""

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
            chosen = random.sample(range(self.nodes), self.nodes)[:size]
            places = dict(zip(chosen, range(first, first + size), strict=True))
            shift = random.uniform(0, self.seconds) if first else 0.0
            for node, start, end in self.entries:
                if node in places:
                    entries += _turned(NodeOutage(places[node], start, end), shift, self.seconds)
        by_start = tuple(sorted(entries, key=lambda entry: entry.start))
        return msgspec.structs.replace(self, nodes=nodes, entries=by_start)


def load_outages(source: str, job: Job | None = None, servers: int | None = None) -> Outages:
    """Read a trace of nodes or of servers, a fault file, or a trace that comes with the package.

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
    elif source != str(STANDARD) and Path(source).suffix not in (".toml", *TRACES, ".json"):
        raise FaultError(
            f"{source}: its name has to end in .toml, {', '.join(TRACES)}, .json, or be one of {', '.join(SHIPPED)}"
        )
    else:
        content = read_bytes(Path(source))
    try:
        is_of_faults = source.endswith(".toml")
        trace = None if is_of_faults else read_nodes(content)
        facts = comments(content)
        if trace is None:
            changes = _changes_of_faults(content) if is_of_faults else read_changes(content)
            trace = _of_servers(changes, _required(job), "fault" if is_of_faults else "line")
        if not trace.outages:
            raise FaultError("nothing is lost in it: give a trace with at least one failure")
        if any(map(is_server, trace.names)):
            job = _required(job)
            if servers is not None:
                raise FaultError(
                    f"{servers} servers: its names are those of this job's servers; leave out how many they are"
                )
            places = _server_places(trace, job)
            outages = _outages(source, trace, places, len(job.servers()), facts)
            return msgspec.structs.replace(outages, is_of_servers=True)
        places = {name: place for place, name in enumerate(sorted(trace.names, key=natural))}
        held = None if job is None else servers_of_nodes(job, facts)
        if job is None or held is None:
            return _outages(source, trace, places, _count_nodes(trace, facts, job, servers), facts)
        if servers is not None:
            raise FaultError(
                f"{servers} servers: a trace that says how many a node has is of this job's; leave them out"
            )
        of_nodes = _outages(source, trace, places, _count_nodes(trace, facts), facts)
        return _on_servers(of_nodes, job, held)
    except FaultError as error:
        raise FaultError(f"{source}: {error}") from error


def _required(job: Job | None) -> Job:
    if job is None:
        raise FaultError("it is of servers: give the job that they are of")
    return job


def is_server(name: str) -> bool:
    """Whether a trace's name is that of a server."""
    try:
        Server.parse(name)
    except JobError:
        return False
    return True


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
    said = {name: number for name, number in facts.items() if name.endswith("-per-node")}
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


def _changes_of_faults(content: bytes) -> list[ServerChange]:
    changes = []
    for number, fault in enumerate(decode_faults(content).entries, 1):
        if not (fault.kind.ends_server or fault.kind is Kind.JOIN):
            continue
        if fault.at is None:
            raise FaultError(f"fault {number}, {fault}: a study has no steps; write at = instead")
        changes.append(ServerChange(number, fault.at, ADD if fault.kind is Kind.JOIN else REMOVE, fault.servers))
    return sorted(changes, key=lambda each: each.time)


def _of_servers(changes: Iterable[ServerChange], job: Job, what: str) -> NodeTrace:
    """The outages of a job's servers, all of which are there at the start."""
    lost: dict[Server, NamedOutage] = {}
    outages = []
    time = 0.0
    for line, time, change, servers in checked_changes(changes, job, what=what):
        for server in servers:
            if change == REMOVE:
                lost[server] = NamedOutage(line, str(server), time, None)
            else:
                outages.append(lost.pop(server)._replace(end=time))
    return NodeTrace(frozenset(map(str, job.servers())), (*outages, *lost.values()), time, what)


def _server_places(trace: NodeTrace, job: Job) -> dict[str, int]:
    """The place of each server that a trace names, by pipeline and then stage."""
    places = {}
    for each in trace.outages:
        try:
            server = Server.parse(each.name)
            job.require_servers([server])
        except UserError as error:
            raise FaultError(f"{trace.what} {each.line}: {error}") from error
        places[each.name] = server.pipeline * job.depth + server.stage
    return places


def _count_nodes(
    trace: NodeTrace, facts: Mapping[str, float], job: Job | None = None, servers: int | None = None
) -> int:
    """Of how many servers a trace is: what it says, what is given, or what follows from what it names."""
    named, said = len(trace.names), facts.get("nodes")
    if servers is not None:
        if servers > MOST_NODES:
            raise FaultError(f"{servers} servers: give {MOST_NODES} at most")
        if said not in (None, servers):
            raise FaultError(f"{servers} servers are given, and the trace says {said:g}; leave one of them out")
        if named > servers:
            raise FaultError(f"{servers} servers: it names {named}; give as many at least")
        return servers
    if said is not None:
        if not (said.is_integer() and 0 < said <= MOST_NODES):
            raise FaultError(f"# nodes {said:g}: give a whole number from 1 to {MOST_NODES}")
        if named > said:
            raise FaultError(f"it names {named} nodes, and says that there are {said:g}; correct it")
        return int(said)
    # Where live nodes are counted, all of them are known.
    if trace.is_whole or job is None:
        return named
    size = job.pipelines * job.depth
    if named > size:
        raise FaultError(
            f"it names {plural(named, 'server')} that failed, and does not say of how many; give --servers, or a line "
            "# nodes N"
        )
    return size


def _outages(
    source: str, trace: NodeTrace, places: Mapping[str, int], nodes: int, facts: Mapping[str, float]
) -> Outages:
    """The outages of a trace.

    Args:
        source: where it is from.
        trace: what it says.
        places: of what it names.
        nodes: how many places there are.
        facts: what it says of itself.
    """
    seconds = facts["days"] * UNITS["days"] if "days" in facts else trace.end
    if seconds < trace.end < seconds + ROUNDED:
        seconds = trace.end
    if not seconds and "days" not in facts:
        raise FaultError("all that happens in it is at its begin; say how long it lasts in a line # days N")
    if not trace.end <= seconds or not seconds:
        raise FaultError(f"it lasts {seconds:g} s, and its last event is at {trace.end:g} s; correct # days")
    found: dict[int, list[NodeOutage]] = {}
    at_end: set[int] = set()
    for each in sorted(trace.outages, key=lambda each: each.start):
        place = places[each.name]
        outage = NodeOutage(place, each.start, seconds if each.end is None else each.end)
        of_place = found.setdefault(place, [])
        if of_place and of_place[-1].end >= outage.start:
            # Outages that overlap or touch are one.
            of_place[-1] = of_place[-1]._replace(end=max(of_place[-1].end, outage.end))
        elif each.end is None and each.start == seconds:
            at_end.add(place)
        else:
            of_place.append(outage)
    merged = [outage for of_place in found.values() for outage in of_place]
    entries = sorted((each for each in merged if each.start < each.end), key=lambda each: (each.start, each.node))
    without_length = len(merged) - len(entries)
    return Outages(source, nodes, seconds, tuple(entries), at_end=len(at_end), without_length=without_length)


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
