"""Lower bounds for jobs whose servers hold several chunks, each with its proof; ``bounds`` has those for one.

Every rule looks at the busiest live server of a place, the one with the most work. A hop between neighbouring chunks
counts its latency only where the two are at different places: a server that holds both may execute both.

Work. A place has to do its chunks' work for all micro-batches. Under a rule that keeps micro-batches at home each live
server does that of its own, and those of the dead ones are shared: by the mean some server has so much of their work,
and by counting some server has so many of their chunks. The updates of all its chunks come on top; where reductions
keep no server busy, its steps do, or the one reduction and the step of the chunk that it computes last.

Warm-up. Before its first I a server can run only F, and each of them still holds its memory: at most the best filling
of the limit. That I starts no earlier than a round trip behind the end of its F, and the difference is idle. Under a
rule that keeps micro-batches at home a server has all chunks of its pipeline's, its own. So until the way from its
lowest chunk to its next has passed since its first F of its own, all these are of the lowest; and so on to its last
chunk, of which its first I of its own is, a round trip behind that F. Before any memory of its own is released that
micro-batch needs some for its F of every chunk: what is executed until the F of a chunk can be there is at most the
best filling of the limit less what the chunks from there on hold. The rest of that time is idle or the guests', so that
all work of its own and that rest fit into the window.

Last gradient. Between the first F and the last I lie all F and I, the warm-up, and all W but those still pending at the
last I; what these hold is in memory together, so they are no more than the best filling of the limit with W. Of a
server's own, the last F is of the last chunk; and the last I, of the lowest chunk, comes no earlier than the round trip
of that F and the way back to the lowest. All I and W of its own behind the last F are of what is in memory then, at
most the best filling of the limit with both. All other work of its own lies before it, and the warm-up too, if memory
does not hold all F.

Sandwich. Let t be a chunk below the lowest that the server holds. Its first F belongs to a micro-batch whose F of t
started the way from t earlier; its last I to one whose I of t comes the way back later, and is followed by a W and an
update of t. All of that is inside one window: that of the server that ran the first of them, which does not end before
all gradients of t are complete and it has stepped. Nor does any F of the place come sooner behind the first F of t than
by the way: the shared warm-up counts.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple, TypeAlias

from recycle.holding import least_updates
from recycle.job import Server
from recycle.planner.model.problem import Problem

ChunkRule: TypeAlias = Literal["work", "warm-up", "last gradient", "sandwich"]


class _Window(NamedTuple):
    """What lies in a window beside the work of the busiest server of a place.

    Attributes:
        idle: its idle time before its first I.
        last_gradient: from the first F in the window to the end of its last I.
    """

    idle: int
    last_gradient: int


class _Load(NamedTuple):
    """What the busiest server of a place does at least, and what it waits for.

    Attributes:
        work: all its compute.
        last_weight: how long the W behind its last I takes.
        own: from its first F on.
        shared: from the first F of the place on, by whichever server.
    """

    work: int
    last_weight: int
    own: _Window
    shared: _Window


class _Item(NamedTuple):
    """What a server may execute at a time at which nothing else releases memory.

    Attributes:
        memory: that each takes.
        time: that each takes.
        most: how many there are at most.
    """

    memory: int
    time: int
    most: int


def chunk_bounds(problem: Problem) -> list[tuple[int, int, ChunkRule]]:
    """Every rule at every place: the value of a problem that it proves, the place and the rule."""
    job = problem.job
    found: list[tuple[int, int, ChunkRule]] = []
    out, back = _ways(problem)
    for place, chunks in enumerate(job.chunks):
        load = _busiest(problem, place, out, back)
        lowest = chunks[0]
        outside = least_updates(job, Server(0, place)) if problem.staggered else out[lowest]
        one = min(job.stages[chunk].update for chunk in chunks) if problem.staggered else out[lowest]
        idle = max(load.own.idle + outside, load.shared.idle + one)
        last_gradient = max(load.own.last_gradient + outside, load.shared.last_gradient + one)
        found.append((load.work + outside, place, "work"))
        found.append((load.work + idle, place, "warm-up"))
        found.append((last_gradient + load.last_weight, place, "last gradient"))
        for chunk in range(lowest) if problem.staggered else range(min(lowest, 1)):
            way = out[lowest] - out[chunk] + back[lowest] - back[chunk]
            last = problem.cost[chunk][2] + (job.stages[chunk].update if problem.staggered else 0)
            found.append((way + load.shared.last_gradient + last, place, "sandwich"))
    return found


def round_trip(problem: Problem, chunk: int) -> int:
    """Least time from the start of a micro-batch's F of a chunk to the end of its I there."""
    out, back = _ways(problem)
    return out[-1] - out[chunk] + problem.cost[-1][0] + problem.cost[-1][1] + back[-1] - back[chunk]


def _ways(problem: Problem) -> tuple[list[int], list[int]]:
    """Per chunk, the least time from the start of a micro-batch's F of chunk 0 to its F there; and the same of I back.

    The way back is from the end of its I there to the end of its I of chunk 0.
    """
    out, back = [0], [0]
    for chunk, needs in enumerate(problem.needs[1:]):
        hop = needs[0][0].lag
        out.append(out[-1] + problem.cost[chunk][0] + hop)
        back.append(back[-1] + problem.cost[chunk][1] + hop)
    return out, back


def _busiest(problem: Problem, place: int, out: Sequence[int], back: Sequence[int]) -> _Load:
    job = problem.job
    chunks = job.chunks[place]
    live = len(problem.live[place])
    each = [sum(problem.cost[chunk]) for chunk in chunks]
    keeps_home = problem.mode.keeps_home
    own = job.micro_batches if keeps_home else 0

    others = problem.total - own * live
    work = own * sum(each) + max(-(-others * sum(each) // live), -(-others * len(chunks) // live) * min(each))
    limit = job.limit(place)
    pending = _filling(
        limit, [_Item(problem.release[chunk][2], problem.cost[chunk][2], problem.total) for chunk in chunks]
    )
    first_gradient = min(round_trip(problem, chunk) - problem.cost[chunk][1] for chunk in chunks)
    idle = max(0, first_gradient - _filling(limit, _forwards(problem, chunks, problem.total)))
    last_gradient = work + idle - pending
    last_weight = min(problem.cost[chunk][2] for chunk in chunks)
    if keeps_home:
        mine, warm_up = own * sum(each), _warm_up(problem, place, out, own, keeps=True)
        idle = max(idle, mine + warm_up - work)
        # If memory does not hold all F, the last of them comes behind the first I, and so behind the warm-up.
        waits = own * sum(job.stages[chunk].held for chunk in chunks) > limit
        cooled = mine + (warm_up if waits else 0) + _cool_down(problem, place, back)
        last_gradient = max(last_gradient, mine + warm_up - pending, cooled)
    if keeps_home and live == job.pipelines:
        last_weight = problem.cost[chunks[0]][2]
    shared = max(idle, _warm_up(problem, place, out, problem.total, keeps=False))
    shared_last = max(last_gradient, work + shared - pending)
    return _Load(work, last_weight, _Window(idle, last_gradient), _Window(shared, shared_last))


def _warm_up(problem: Problem, place: int, out: Sequence[int], count: int, *, keeps: bool) -> int:
    """For how long a server does nothing for some micro-batches before the first I of them at its place.

    Args:
        problem: what is planned.
        place: the server's.
        out: per chunk, the way there.
        count: how many micro-batches.
        keeps: whether one of them is the first to release memory, and all its chunks are executed there.
    """
    chunks, limit = problem.job.chunks[place], problem.job.limit(place)
    last = chunks[-1]
    first_gradient = out[last] + round_trip(problem, last) - problem.cost[last][1]
    idle = 0
    for there, time in enumerate([*(out[chunk] for chunk in chunks[1:]), first_gradient], 1):
        kept = sum(problem.acquire[chunk][0] for chunk in chunks[there:]) if keeps else 0
        forwards = _filling(limit - kept, _forwards(problem, chunks[:there], count))
        idle = max(idle, time - out[chunks[0]] - forwards)
    return idle


def _cool_down(problem: Problem, place: int, back: Sequence[int]) -> int:
    """By how much the way from a server's last F of its own to its last I is longer than its own tasks from then on."""
    chunks, own = problem.job.chunks[place], problem.job.micro_batches
    lowest, last = chunks[0], chunks[-1]
    items = []
    for chunk in chunks:
        _, gradient, weight = problem.cost[chunk]
        items.append(_Item(problem.acquire[chunk][0], gradient + weight, own))
        items.append(_Item(problem.release[chunk][2], weight, own))
    way = round_trip(problem, last) + back[last] - back[lowest]
    return way - problem.cost[last][0] - _filling(problem.job.limit(place), items)


def _forwards(problem: Problem, chunks: Iterable[int], count: int) -> list[_Item]:
    return [_Item(problem.acquire[chunk][0], problem.cost[chunk][0], count) for chunk in chunks]


def _filling(limit: int, items: Iterable[_Item]) -> int:
    """No less than the most time that items can take whose memory fits into a limit together."""
    timed = [item for item in items if item.time]
    free = sum(item.time * item.most for item in timed if not item.memory)
    sizes = sorted((item for item in timed if item.memory), key=lambda item: Fraction(-item.time, item.memory))
    if not sizes:
        return free
    by_count = limit // min(item.memory for item in sizes) * max(item.time for item in sizes)
    in_parts, room = 0, limit
    for item in sizes:
        taken = min(room, item.memory * item.most)
        in_parts += taken * item.time // item.memory
        room -= taken
    return free + min(by_count, in_parts)
