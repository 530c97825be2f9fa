"""Traffic of copies in a plan: snapshots in a server's bubbles, and their way over idle links, piece by piece.

A version is there from the end of a server's step on, and is with its holders before the gradients of the next one are
reduced. Meanwhile the server is idle in its plan's bubbles, and a link while it carries nothing between neighbouring
stages. What fits in there delays nothing. Gemini (SOSP'23, Algorithm 2) cuts copies so that they fit into idle time of
links that it has measured; here it is known from the plan, and of both ends.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from recycle.job import Server
from recycle.plan.plan import Plan
from recycle.record.planned import timeline


class Traffic(NamedTuple):
    """What each server copies in every iteration, in equal pieces; times are in the plan's unit.

    Attributes:
        pieces: into how many a server's part of a version is cut.
        snapshot: how long one takes to host memory.
        copy: how long one takes over a link, setting up included.
        holders: whose hosts get a server's part.
    """

    pieces: int
    snapshot: int
    copy: int
    holders: Mapping[Server, Sequence[Server]]


class PieceMove(NamedTuple):
    """A piece on its way.

    Attributes:
        server: whose.
        number: which piece.
        holder: whose host gets it; None for its own host's memory, which comes first.
        start: when, in the plan's time, or from the beginning of the pause.
        end: likewise.
    """

    server: Server
    number: int
    holder: Server | None
    start: int
    end: int


class CopyPlan(NamedTuple):
    """When everything is copied, in each iteration at the same time.

    Attributes:
        moves: what is copied while training goes on.
        paused: what is copied in a pause, because there is no room for it.
        pause: how long that takes, by which the period is longer than the plan's. It begins with the first reduction of
            the iteration: what has begun then comes to its end, and all else waits.
    """

    moves: tuple[PieceMove, ...]
    paused: tuple[PieceMove, ...]
    pause: int


class CopyWindow(NamedTuple):
    """When a version of a server's is there to be copied: from the end of a step to the next reduction."""

    start: int
    end: int


Resource = tuple[str, Server]
"""What one thing at a time can use: a server, or a direction of its link."""


def plan_copies(plan: Plan, traffic: Traffic) -> CopyPlan:
    """Find room for all copies, each as early as it can be; servers take turns, piece by piece.

    Args:
        plan: a legal one.
        traffic: what is copied.
    """
    used, windows = _used(plan), _windows(plan)
    calendar = Calendar(plan.period, used)
    there = {server: window.start for server, window in windows.items()}
    moves: list[PieceMove] = []
    waiting: dict[PieceMove, None] = {}
    for wanted in _wanted(traffic, windows):
        server, _, holder, _, length = wanted
        start = None
        if holder is None or wanted._replace(holder=None, end=traffic.snapshot) not in waiting:
            start = calendar.find(_resources(wanted), there[server], length, windows[server].end)
        if start is None:
            waiting[wanted] = None
            continue
        moves.append(wanted._replace(start=start, end=start + length))
        calendar.take(_resources(wanted), start, length)
        if holder is None:
            there[server] = start + length
    if not waiting:
        return CopyPlan(tuple(moves), (), 0)
    paused = _in_a_pause(waiting, _drain(plan, moves))
    return CopyPlan(tuple(moves), paused, max(each.end for each in paused))


def check_copies(plan: Plan, traffic: Traffic, copies: CopyPlan) -> list[str]:
    """What is wrong with a plan of copies; if nothing is, the period is the plan's and the pause.

    Args:
        plan: a legal one.
        traffic: what is to be copied.
        copies: when that is done.
    """
    found: list[str] = []
    windows = _windows(plan)
    everything = (*copies.moves, *copies.paused)
    if Counter(each[:3] for each in everything) != Counter(each[:3] for each in _wanted(traffic, windows)):
        found.append("not every piece is copied once to each of its holders")
    snapshots = {each[:2]: each.end for each in copies.moves if each.holder is None}
    paused = {each[:2]: each.end for each in copies.paused if each.holder is None}
    for each in copies.moves:
        window = windows[each.server]
        if not window.start <= each.start <= each.end <= window.end:
            found.append(f"{_words(each)} is not while the version is there")
        if each.holder is not None and each.start < snapshots.get(each[:2], window.end):
            found.append(f"{_words(each)} leaves before it is in host memory")
    drain = _drain(plan, copies.moves)
    for each in copies.paused:
        if not drain <= each.start <= each.end <= copies.pause:
            found.append(f"{_words(each)} is not in the pause")
        if each.holder is not None and each.start < paused.get(each[:2], 0):
            found.append(f"{_words(each)} leaves before it is in host memory")
    for each in everything:
        if each.end - each.start != (traffic.snapshot if each.holder is None else traffic.copy):
            found.append(f"{_words(each)} does not take as long as it takes")
    # Each iteration is like the one before, so that what overlaps at all does so in one that others surround.
    used: dict[Resource, list[tuple[int, int]]] = defaultdict(list)
    for resource, spans in _used(plan).items():
        shifted = ((start + shift, end + shift) for start, end in spans for shift in _shifts(plan.period))
        used[resource] = _union(shifted)
    for each in copies.moves:
        for resource in _resources(each):
            used[resource] += [(each.start + shift, each.end + shift) for shift in _shifts(plan.period)]
    pause: dict[Resource, list[tuple[int, int]]] = defaultdict(list)
    for each in copies.paused:
        for resource in _resources(each):
            pause[resource].append((each.start, each.end))
    for what, server in (*_overlapping(used, copies.moves), *_overlapping(pause, copies.paused)):
        found.append(f"the {what} of {server} does two things at a time")
    return found


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
            # In the first iteration in which it ends after this time.
            shift = ((time - end) // self._period + 1) * self._period
            if end > start and start + shift < time + length:
                return end + shift
        return time


def _used(plan: Plan) -> dict[Resource, list[tuple[int, int]]]:
    """What an iteration of the plan uses."""
    used: dict[Resource, list[tuple[int, int]]] = defaultdict(list)
    for span in timeline(plan).spans:
        times = int(span.start), int(span.end)
        if span.lane == "compute":
            used["time", span.server].append(times)
        elif span.instruction.peer is not None:
            used["sending link", span.server].append(times)
            used["receiving link", span.instruction.peer].append(times)
    return used


def _windows(plan: Plan) -> dict[Server, CopyWindow]:
    """When the version of each live server is there to be copied, from the end of its step on."""
    windows: dict[Server, CopyWindow] = {}
    updates = [span for span in timeline(plan).spans if span.instruction.op.is_update]
    for server in plan.programs:
        mine = [span for span in updates if span.server == server]
        start, end = max(int(each.end) for each in mine), min(int(each.start) for each in mine)
        windows[server] = CopyWindow(start, end + plan.period)
    return windows


def _wanted(traffic: Traffic, servers: Iterable[Server]) -> Iterable[PieceMove]:
    """All that is to be copied, servers in turns; a piece's snapshot comes first."""
    ordered = sorted(servers)
    for number in range(traffic.pieces):
        for server in ordered:
            for holder in (None, *traffic.holders[server]):
                yield PieceMove(server, number, holder, 0, traffic.snapshot if holder is None else traffic.copy)


def _resources(move: PieceMove) -> Sequence[Resource]:
    if move.holder is None:
        return (("time", move.server),)
    return ("sending link", move.server), ("receiving link", move.holder)


def _drain(plan: Plan, moves: Iterable[PieceMove]) -> int:
    """How long after the first reduction of an iteration what has begun before it comes to its end."""
    windows = _windows(plan).values()
    begins = min(each.end for each in windows)
    spans = [(int(each.start), int(each.end)) for each in timeline(plan).spans]
    spans += [(each.start, each.end) for each in moves]
    ends = [
        end + shift for start, end in spans for shift in _shifts(plan.period) if start + shift < begins < end + shift
    ]
    return max([begins, *ends, *(each.start for each in windows)]) - begins


def _in_a_pause(waiting: Iterable[PieceMove], drain: int) -> tuple[PieceMove, ...]:
    """What has found no room, one thing behind the other on each resource, while nobody trains."""
    free: dict[Resource, int] = defaultdict(lambda: drain)
    there: dict[tuple[Server, int], int] = {}
    moves = []
    for each in waiting:
        start = max([there.get(each[:2], drain), *(free[resource] for resource in _resources(each))])
        moves.append(each._replace(start=start, end=start + each.end))
        for resource in _resources(each):
            free[resource] = start + each.end
        if each.holder is None:
            there[each[:2]] = start + each.end
    return tuple(moves)


def _overlapping(used: Mapping[Resource, Sequence[tuple[int, int]]], moves: Iterable[PieceMove]) -> Iterable[Resource]:
    """The resources of some moves that are used for two things at a time."""
    for resource in sorted({resource for each in moves for resource in _resources(each)}):
        end = min(start for start, _ in used[resource])
        for start, stop in sorted(each for each in used[resource] if each[1] > each[0]):
            if start < end:
                yield resource
                break
            end = stop


def _union(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """When something is used: several transfers of a plan may be under way at once."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _shifts(period: int) -> Sequence[int]:
    return range(-2 * period, 3 * period, max(period, 1))


def _words(move: PieceMove) -> str:
    if move.holder is None:
        return f"the snapshot of piece {move.number + 1} of {move.server}"
    return f"piece {move.number + 1} of {move.server} for {move.holder}"
