"""Spreading: the chunks of a pipeline of which servers have died. Pure.

Servers keep their names, and those of a pipeline their order. A dead one is left without chunks, so that nothing of its
pipeline needs to be re-routed any more. Each live one holds a run of consecutive chunks. Of the cuts that fit into
memory, the one is taken whose slowest server is the quickest; of those, the one that has servers copy the fewest
chunks.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate

from recycle.job import Job, Server
from recycle.placement import Layout, PlacedPipeline, PlacedServer

Servers = tuple[PlacedServer, ...]

Role = tuple[int, Sequence[int]]
"""The pipeline that a server computes in, and the chunks that it holds."""


def spread(job: Job, home: Servers, live: Collection[int], held: Sequence[Collection[int]]) -> Servers | None:
    """The servers of one pipeline, of which only some are alive.

    Args:
        job: what is trained.
        home: the pipeline's servers where all are alive.
        live: the places of those that are.
        held: the chunks that each server has now.

    Returns:
        As many servers as there are at home; None where the live ones have no room for the model.
    """
    places = sorted(live)
    count = len(job.stages)
    state, kept = _sums(each.state for each in job.stages), _sums(each.held for each in job.stages)
    # By the first chunk of a run, and then its last.
    taken = [list(accumulate((each.taken_at_input_gradient for each in job.stages[at:]), max)) for at in range(count)]
    memory = {place: room(job, home[place], ()) for place in places}
    times = {place: _sums(home[place].time(each.work) for each in job.stages) for place in places}
    lacking = {place: _sums(chunk not in held[place] for chunk in range(count)) for place in places}

    def time(place: int, first: int, end: int) -> float:
        needed = state[end] - state[first] + kept[end] - kept[first] + taken[first][end - first - 1]
        return times[place][end] - times[place][first] if needed <= memory[place] else math.inf

    longest, _ = _best_cut(places, count, time, max)
    if math.isinf(longest):
        return None

    def copies(place: int, first: int, end: int) -> float:
        return lacking[place][end] - lacking[place][first] if time(place, first, end) <= longest else math.inf

    _, runs = _best_cut(places, count, copies, lambda one, other: one + other)
    cut = dict(zip(places, runs, strict=True))
    return tuple(with_chunks(job, server, cut.get(place, ())) for place, server in enumerate(home))


def room(job: Job, server: PlacedServer, chunks: Iterable[int]) -> int:
    """Memory for activations on a server that holds other chunks than at home."""
    before, after = (sum(job.stages[chunk].state for chunk in each) for each in (server.chunks, chunks))
    return server.limit + before - after


def with_chunks(job: Job, server: PlacedServer, chunks: Sequence[int], pipeline: int | None = None) -> PlacedServer:
    """A server that holds other chunks than at home.

    Args:
        job: what is trained.
        server: as it is at home.
        chunks: rising; none where it is dead.
        pipeline: that it computes in, if that is not its own.
    """
    # Who holds nothing gets its chunks at home first, and keeps its memory for them.
    limit = room(job, server, chunks) if chunks else server.limit
    return PlacedServer(tuple(chunks), limit, server.speed, pipeline)


def assigned(job: Job, home: Layout, roles: Mapping[Server, Role], loads: Sequence[int]) -> Layout:
    """The layout in which some servers have a role, and all others hold nothing.

    Args:
        job: what is trained.
        home: which server holds what while all live.
        roles: the pipeline of each server that lives, and its chunks.
        loads: micro-batches of each pipeline.
    """
    pipelines = []
    for number, (pipeline, load) in enumerate(zip(home, loads, strict=True)):
        servers = []
        for place, server in enumerate(pipeline.servers):
            mine, chunks = roles.get(Server(number, place), (number, ()))
            servers.append(with_chunks(job, server, chunks, None if mine == number else mine))
        pipelines.append(PlacedPipeline(load, tuple(servers)))
    return tuple(pipelines)


def _best_cut(
    places: Sequence[int],
    count: int,
    cost: Callable[[int, int, int], float],
    together: Callable[[float, float], float],
) -> tuple[float, list[range]]:
    """The cut of so many chunks into a run for each place with the least cost, by dynamic programming from the front.

    Args:
        places: who gets a run of one chunk at least, in order.
        count: of chunks.
        cost: of a run at a place, by its first chunk and the one behind its last.
        together: the cost of two parts of a pipeline; it grows with both.
    """
    nowhere: tuple[float, list[range]] = (math.inf, [])
    best: list[tuple[float, list[range]]] = [(0.0, []), *[nowhere] * count]
    for place in places:
        following = [nowhere] * (count + 1)
        for end in range(1, count + 1):
            for start in range(end):
                before, runs = best[start]
                total = together(before, cost(place, start, end))
                if total < following[end][0]:
                    following[end] = total, [*runs, range(start, end)]
        best = following
    return best[count]


def _sums(amounts: Iterable[int]) -> list[int]:
    """What all chunks before each one have together, and what all have: that of a run is a difference."""
    return list(accumulate(amounts, initial=0))
