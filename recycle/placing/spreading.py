"""Spreading: the chunks of a pipeline whose servers have died or become slow, and back home at a repair. Pure.

Servers keep their names and their order. A dead one is left without chunks, so that nothing of its pipeline needs to be
re-routed any more. Each live one holds a run of consecutive chunks. Of the cuts that fit into memory, the one is taken
whose slowest server is the quickest; of those, the one that has servers copy the fewest chunks.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from recycle.holding import Layout
from recycle.job import Job, Server
from recycle.placement import PlacedPipeline, PlacedServer

Servers = tuple[PlacedServer, ...]


def spread(job: Job, home: Servers, live: Collection[int], held: Sequence[Collection[int]]) -> Servers | None:
    """The servers of one pipeline, of which only some are alive, or which are not all as fast as they were.

    Args:
        job: what is trained.
        home: the pipeline's servers where all are alive, with the speeds that they have now.
        live: the places of those that are.
        held: the chunks that each server has now.

    Returns:
        As many servers as there are at home; None where the live ones have no room for the model.
    """
    places = sorted(live)
    count = len(job.stages)

    def room(place: int, chunks: range) -> int:
        before, after = (sum(job.stages[chunk].state for chunk in each) for each in (home[place].chunks, chunks))
        return home[place].limit + before - after

    def time(place: int, chunks: range) -> float:
        if room(place, chunks) < sum(job.stages[chunk].held for chunk in chunks):
            return math.inf
        return sum(home[place].time(job.stages[chunk].work) for chunk in chunks)

    def missing(place: int, chunks: range) -> int:
        return sum(chunk not in held[place] for chunk in chunks)

    longest, _ = _best_cut(places, count, time, max)
    if math.isinf(longest):
        return None

    def copies(place: int, chunks: range) -> float:
        return missing(place, chunks) if time(place, chunks) <= longest else math.inf

    _, runs = _best_cut(places, count, copies, lambda one, other: one + other)
    cut = dict(zip(places, runs, strict=True))
    return tuple(
        PlacedServer(tuple(cut[place]), room(place, cut[place]), server.speed)
        if place in cut
        else PlacedServer((), server.limit, server.speed)
        for place, server in enumerate(home)
    )


def return_home(
    job: Job, home: Layout, layout: Layout, returned: Collection[Server], live: Collection[Server]
) -> Layout:
    """Who holds what when servers come back whose chunks have moved to others.

    Their pipelines are spread anew, or are as at home where all of their servers live. All pipelines bring as many
    micro-batches again as at home: what fits the new servers better is chosen once they are there. Who comes back is
    thought to be as fast as at home; the others are as they were.

    Args:
        job: what is trained.
        home: who holds what where nobody is dead.
        layout: who holds what now.
        returned: the servers that come back, and hold nothing.
        live: all live servers, those among them.
    """
    pipelines = []
    for number, (mine, now) in enumerate(zip(home, layout, strict=True)):
        servers, back = now.servers, {server.stage for server in returned if server.pipeline == number}
        if back:
            places = [server.stage for server in live if server.pipeline == number]
            speeds = {place: each.speed for place, each in enumerate(servers) if place not in back}
            known = with_speeds(mine.servers, speeds)
            whole = len(places) == len(known)
            servers = known if whole else spread(job, known, places, [each.chunks for each in servers]) or known
        pipelines.append(PlacedPipeline(mine.micro_batches, servers))
    return tuple(pipelines)


def with_speeds(servers: Servers, speeds: Mapping[int, int]) -> Servers:
    """The servers of a pipeline, of which some are as fast as is said, in percent, by their place."""
    replace = msgspec.structs.replace
    return tuple(replace(each, speed=speeds.get(place, each.speed)) for place, each in enumerate(servers))


def _best_cut(
    places: Sequence[int],
    count: int,
    cost: Callable[[int, range], float],
    together: Callable[[float, float], float],
) -> tuple[float, list[range]]:
    """The cut of so many chunks into a run for each place with the least cost, by dynamic programming from the front.

    Args:
        places: who gets a run of one chunk at least, in order.
        count: of chunks.
        cost: of a run at a place.
        together: the cost of two parts of a pipeline; it grows with both.
    """
    nowhere: tuple[float, list[range]] = (math.inf, [])
    best: list[tuple[float, list[range]]] = [(0.0, []), *[nowhere] * count]
    for place in places:
        following = [nowhere] * (count + 1)
        for end in range(1, count + 1):
            for start in range(end):
                before, runs = best[start]
                total = together(before, cost(place, range(start, end)))
                if total < following[end][0]:
                    following[end] = total, [*runs, range(start, end)]
        best = following
    return best[count]
