"""Lower bounds for jobs whose servers hold several chunks, each with its proof; ``bounds`` has those for one.

Every rule looks at the busiest live server of a place, the one with the most work. A hop between neighbouring chunks
counts its latency only where the two are at different places: a server that holds both may execute both.

Work. A place has to do its chunks' work for all micro-batches. Under a rule that keeps micro-batches at home each live
server does that of its own, and those of the dead ones are shared: by the mean some server has so much of their work,
and by counting some server has so many of their chunks. The updates of all its chunks come on top; where reductions
keep no server busy, its steps do, or the one reduction and the step of the chunk that it computes last.

Warm-up. Before its first I a server can run only F, and each of them still holds its memory: at most the best filling
of the limit. The first I, of chunk c, starts no earlier than a round trip behind the end of its F; and where all of the
place's servers live and micro-batches stay at home, that F itself starts no earlier than the way from the server's
lowest chunk to c after the server's first F. The least of this over c, minus the filling, is idle time.

Sandwich. Let t be a chunk below the lowest that the server holds. Its first F belongs to a micro-batch whose F of t
started the way from t earlier; its last I to one whose I of t comes the way back later, and is followed by a W and an
update of t. All of that is inside one window: that of the server that ran the first of them, which does not end before
all gradients of t are complete and it has stepped. Between the first F and the last I lie all F and I, the warm-up, and
all W but those still pending at the last I; what these hold is in memory together, so they are no more than the best
filling of the limit with W.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from recycle.holding import least_updates
from recycle.job import Server
from recycle.planner.model.problem import Problem

ChunkRule: TypeAlias = Literal["work", "warm-up", "sandwich"]


class _Load(NamedTuple):
    """What the busiest server of a place does at least, and what it waits for.

    Attributes:
        work: all its compute.
        idle: idle time before its first I.
        pending: the most W that can be left at its last I.
    """

    work: int
    idle: int
    pending: int


def chunk_bounds(problem: Problem) -> list[tuple[int, int, ChunkRule]]:
    """Every rule at every place: the value of a problem that it proves, the place and the rule."""
    job = problem.job
    found: list[tuple[int, int, ChunkRule]] = []
    out, back = _ways(problem)
    for place, chunks in enumerate(job.chunks):
        load = _busiest(problem, place, out, back)
        lowest = chunks[0]
        outside = least_updates(job, Server(0, place)) if problem.staggered else out[lowest]
        found.append((load.work + outside, place, "work"))
        found.append((load.work + load.idle + outside, place, "warm-up"))
        middle = load.work + load.idle - load.pending
        for chunk in range(lowest) if problem.staggered else range(min(lowest, 1)):
            way = out[lowest] - out[chunk] + back[lowest] - back[chunk]
            last = problem.cost[chunk][2] + (job.stages[chunk].update if problem.staggered else 0)
            found.append((way + middle + last, place, "sandwich"))
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
    keeps_home = problem.mode.routing_rule.keeps_home
    own = job.micro_batches if keeps_home else 0
    others = problem.total - own * live
    work = own * sum(each) + max(-(-others * sum(each) // live), -(-others * len(chunks) // live) * min(each))

    limit = job.limit(place)
    forwards = _filling(limit, [(job.stages[chunk].held, problem.cost[chunk][0]) for chunk in chunks])
    at_home = keeps_home and live == job.pipelines
    first_gradient = min(
        (out[chunk] - out[chunks[0]] if at_home else 0) + round_trip(problem, chunk) - problem.cost[chunk][1]
        for chunk in chunks
    )
    weights = [(problem.release[chunk][2], problem.cost[chunk][2]) for chunk in chunks]
    total = sum(problem.cost[chunk][2] for chunk in chunks) * problem.total
    return _Load(work, max(0, first_gradient - forwards), min(total, _filling(limit, weights)))


def _filling(limit: int, items: Sequence[tuple[int, int]]) -> int:
    """No less than the most time that items (memory, time) can take whose memory fits into a limit together."""
    if any(memory == 0 and time for memory, time in items):
        return 1 << 60
    sizes = [(memory, time) for memory, time in items if time]
    if not sizes:
        return 0
    by_count = limit // min(memory for memory, _ in sizes) * max(time for _, time in sizes)
    return min(by_count, max(limit * time // memory for memory, time in sizes))
