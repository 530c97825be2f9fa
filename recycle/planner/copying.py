"""Copies of the state in a plan: snapshots in bubbles of servers, and their way over idle links, piece by piece.

A version is there from the end of a server's step on, and is with its holders before the gradients of the next one are
reduced. Meanwhile the server is idle in its plan's bubbles, and a link while it carries nothing between neighbouring
stages. What fits in there delays nothing. Gemini (SOSP'23, Algorithm 2) cuts copies so that they fit into idle time of
links that it has measured; here it is known from the plan, and of both ends. What finds no room is copied before the
server reduces, and the plan's clock says what that costs.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from recycle.job import Server
from recycle.plan.copy_timing import plan_times
from recycle.plan.instruction import Instruction, Op
from recycle.plan.plan import Copies, Plan
from recycle.record.planned import timeline
from recycle.record.timeline import Span
from recycle.state.placement import place_copies

Resource = tuple[str, Server]
"""What one thing at a time can use: a server, or a direction of its link."""


class PieceMove(NamedTuple):
    """A piece on its way, at the time that is meant for it.

    Attributes:
        server: whose.
        piece: its number.
        holder: whose host gets it; None for its own host's memory, which comes first.
        start: when it begins.
        end: when it is there.
    """

    server: Server
    piece: int
    holder: Server | None
    start: int
    end: int


def add_copies(plan: Plan, wanted: Copies) -> Plan:
    """Have every server of a plan copy its part of the state in each iteration, to host memory and to other servers.

    Args:
        plan: a legal one, lowered and without copies.
        wanted: what is copied; the delay is found here.

    Raises:
        JobError: servers hold several chunks, or pipelines differ.
        StateError: there are fewer servers than each part is to have holders.
    """
    plan.job.require_standard("a plan with copies")
    assert plan.form == "lowered", "copies stand beside transfers"
    assert plan.copies is None, "the plan has copies"
    spans = timeline(plan).spans
    holders = _holders(plan, wanted.holders)
    plain, missed = _place(plan, wanted, spans, holders, {})
    found = _with_figures(plan, wanted, spans, plain)
    if not found.copies or not found.copies.delay:
        return found
    # What has no room may be copied before all else as well, so that it is on its way while servers compute.
    early, _ = _place(plan, wanted, spans, holders, missed)
    return min(found, _with_figures(plan, wanted, spans, early), key=lambda each: each.period)


def _with_figures(plan: Plan, wanted: Copies, spans: Sequence[Span], moves: Iterable[PieceMove]) -> Plan:
    """The plan with copies in its lists, and what follows from them."""
    added = msgspec.structs.replace(plan, programs=_merge(plan, spans, moves), copies=wanted)
    times = plan_times(added)
    status = plan.provenance.status if not times.delay else "bounded"
    return msgspec.structs.replace(
        added,
        copies=msgspec.structs.replace(wanted, delay=times.delay),
        makespan=times.clock.makespan,
        period=times.clock.period,
        provenance=msgspec.structs.replace(plan.provenance, status=status),
    )


class Calendar:
    """When resources are used, in every iteration at the same time.

    Args:
        period: after which all is repeated.
        used: from when to when each resource is used.
    """

    def __init__(self, period: int, used: Mapping[Resource, Iterable[tuple[int, int]]]) -> None:
        self._period = period
        self._used = {resource: list(spans) for resource, spans in used.items()}

    def find(self, resources: Sequence[Resource], earliest: int, length: int, latest: int) -> int | None:
        """From when on some resources are free at once.

        Args:
            resources: which.
            earliest: not before this.
            length: for how long.
            latest: when it must be over.

        Returns:
            None if they are not.
        """
        time = earliest
        while time + length <= latest:
            later = max((self._free(each, time, length) for each in resources), default=time)
            if later == time:
                return time
            time = later
        return None

    def take(self, resources: Sequence[Resource], start: int, length: int) -> None:
        """Use some resources from a time on."""
        for each in resources:
            self._used.setdefault(each, []).append((start, start + length))

    def _free(self, resource: Resource, time: int, length: int) -> int:
        """The time, or the end of what is in the way then."""
        for start, end in self._used.get(resource, ()):
            if start == end:
                continue
            # In the first iteration in which it ends after this time.
            shift = ((time - end) // self._period + 1) * self._period
            if start + shift < time + length:
                return end + shift
        return time


def _holders(plan: Plan, count: int) -> Mapping[Server, Sequence[Server]]:
    """Who holds each server's part beside itself, as if every server were a host."""
    servers = sorted(plan.programs)
    placed = place_copies([str(each) for each in servers], count + 1)
    return {each: [servers[place] for place in hosts[1:]] for each, hosts in zip(servers, placed, strict=True)}


def _place(
    plan: Plan,
    wanted: Copies,
    spans: Sequence[Span],
    holders: Mapping[Server, Sequence[Server]],
    first: Mapping[Server, int],
) -> tuple[list[PieceMove], Counter[Server]]:
    """Find room for all pieces, each as early as it can be; servers take turns, piece by piece.

    Args:
        plan: without copies.
        wanted: what is copied.
        spans: of the plan.
        holders: who gets each server's part.
        first: how many pieces of each server are copied before it does anything else, wherever that leads.

    Returns:
        All pieces, and how many of each server found no room in host memory.
    """
    used, period = _used(spans), plan.period
    calendar = Calendar(period, used)
    reduces = {each.server: int(each.start) for each in spans if each.instruction.op is Op.REDUCE}
    steps = {each.server: int(each.end) for each in spans if each.instruction.op is Op.STEP}
    # Of each iteration everything on a link comes behind what the one before has there, as in lists.
    opens = {link: min(start for start, _ in times) for link, times in used.items()}
    closes = {link: max(end for _, end in times) for link, times in used.items()}
    # What finds no room has its point behind all that any server computes, so that servers take turns there as well.
    behind = max(reduces.values())
    missed: Counter[Server] = Counter()
    moves: list[PieceMove] = []
    for piece in range(wanted.pieces):
        for server in sorted(plan.programs):
            there, latest = steps[server] - period, reduces[server]
            if piece < first.get(server, 0):
                moves.append(PieceMove(server, piece, None, there, there))
            for holder in (None, *holders[server])[piece < first.get(server, 0) :]:
                length = wanted.snapshot if holder is None else wanted.copy
                earliest, until = there, latest
                resources: list[Resource] = [("time", server)]
                if holder is not None:
                    resources = [("sending link", server), ("receiving link", holder)]
                    known = [link for link in resources if link in used]
                    earliest = max(there, steps[holder] - period, *(closes[link] - period for link in known))
                    until = min(latest, steps[holder], *(opens[link] + period for link in known))
                start = calendar.find(resources, earliest, length, until)
                if start is None:
                    start = max(there, behind - length if holder is None else behind)
                    missed[server] += holder is None
                else:
                    calendar.take(resources, start, length)
                moves.append(PieceMove(server, piece, holder, start, start + length))
                if holder is None:
                    there = start + length
    return moves, missed


def _used(spans: Iterable[Span]) -> dict[Resource, list[tuple[int, int]]]:
    """What an iteration of a plan uses."""
    used: dict[Resource, list[tuple[int, int]]] = defaultdict(list)
    for span in spans:
        times = int(span.start), int(span.end)
        if span.lane == "compute":
            used["time", span.server].append(times)
        elif span.instruction.peer is not None and span.end > span.start:
            used["sending link", span.server].append(times)
            used["receiving link", span.instruction.peer].append(times)
    return dict(used)


def _merge(plan: Plan, spans: Iterable[Span], moves: Iterable[PieceMove]) -> dict[Server, tuple[Instruction, ...]]:
    """The lists with the pieces among them.

    Everything has a point in one order of all servers: computing and snapshots by their ends, transfers by their
    starts. So lists cannot deadlock, and both ends of a link have the same order.
    """
    points = _points(plan, spans)
    added: dict[Server, list[tuple[int, int, Instruction]]] = {server: [] for server in plan.programs}
    for turn, (server, piece, holder, start, end) in enumerate(moves):
        if holder is None:
            added[server].append((end, turn, Instruction(Op.SNAP, server.stage, piece=piece)))
        else:
            send = Instruction(Op.SEND_S, server.stage, peer=holder, piece=piece)
            added[server].append((start, turn, send))
            added[holder].append((start, turn, Instruction(Op.RECV_S, holder.stage, peer=server, piece=piece)))
    return {
        server: tuple(_merged(program, points[server], sorted(added[server], key=lambda each: each[:2])))
        for server, program in plan.programs.items()
    }


def _merged(
    program: Sequence[Instruction], points: Sequence[int], added: Iterable[tuple[int, int, Instruction]]
) -> Iterator[Instruction]:
    at = 0
    for point, _, instruction in added:
        behind = max(at, bisect_right(points, point))
        yield from program[at:behind]
        yield instruction
        at = behind
    yield from program[at:]


def _points(plan: Plan, spans: Iterable[Span]) -> dict[Server, list[int]]:
    """Of every instruction before a server's updates, its point in the order of all servers."""
    places = {
        (server, each): place
        for server, program in plan.programs.items()
        for place, each in enumerate(program)
        if each.op.is_receive
    }
    points = {server: [0] * sum(not each.op.is_update for each in program) for server, program in plan.programs.items()}
    for span in spans:
        each = span.instruction
        if each.op.is_compute:
            points[span.server][span.index] = int(span.end)
        elif each.peer is not None:
            points[span.server][span.index] = int(span.start)
            stage = each.stage + (1 if each.op is Op.SEND_F else -1)
            receive = Instruction(each.op.partner, stage, each.home, each.micro_batch, span.server)
            points[each.peer][places[each.peer, receive]] = int(span.start)
    return {server: list(accumulate(mine, max)) for server, mine in points.items()}
