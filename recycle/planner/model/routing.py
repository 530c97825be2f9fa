"""Which live server executes each micro-batch at each stage: where a search begins, and what it may change."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from recycle.holding import holders, placed
from recycle.job import Server
from recycle.planner.model.problem import Problem

Routes: TypeAlias = Sequence[Sequence[int]]
"""``routes[stage][home * M + m]``: the pipeline whose server of this stage executes micro-batch (home, m)."""


def balanced_routes(problem: Problem) -> Routes:
    """Healthy micro-batches stay at home, those of a dead server go to its peers in turn, home by home.

    No server executes more than the ceiling of the mean over the live servers of its stage: no routing is better
    balanced.
    """
    routes = []
    for stage, live in enumerate(problem.live):
        dead = _dead_homes(problem, stage)
        guests = (home * problem.job.micro_batches + m for home in dead for m in range(problem.job.micro_batches))
        # Peers take turns, beginning behind the first dead pipeline: loads differ by one at most.
        turn = sum(pipeline < dead[0] for pipeline in live) if dead else 0
        routes.append(_deal(problem, stage, guests, turn))
    return routes


def dealt_routes(problem: Problem) -> Routes:
    """The same for many pipelines: micro-batches of dead servers are dealt by their number rather than by their home.

    So what one peer is dealt is spread over the iteration; and every stage with dead servers begins with another peer,
    so that no pipeline is dealt the first, or the last, at all of them.
    """
    hit = [stage for stage in range(problem.job.depth) if _dead_homes(problem, stage)]
    routes = []
    for stage, live in enumerate(problem.live):
        dead = _dead_homes(problem, stage)
        guests = (home * problem.job.micro_batches + m for m in range(problem.job.micro_batches) for home in dead)
        turn = hit.index(stage) * len(live) // len(hit) if dead else 0
        routes.append(_deal(problem, stage, guests, turn))
    return routes


def movable(problem: Problem, stage: int) -> Mapping[int, tuple[int, ...]]:
    """The micro-batches ``home * M + m`` that may be executed by more than one server of the stage, and by which."""
    width = problem.job.micro_batches
    hosts = [problem.hosts(stage, home) for home in range(problem.job.pipelines)]
    return {unit: hosts[unit // width] for unit in range(problem.total) if len(hosts[unit // width]) > 1}


def _dead_homes(problem: Problem, stage: int) -> list[int]:
    alive = set(problem.live[stage])
    return [pipeline for pipeline in range(problem.job.pipelines) if pipeline not in alive]


def _deal(problem: Problem, stage: int, guests: Iterable[int], turn: int) -> tuple[int, ...]:
    """Route one stage: micro-batches stay at home, but for guests, which go to the live servers in turn.

    Args:
        problem: what is planned.
        stage: which.
        guests: the micro-batches whose home server is dead, in the order in which they are dealt.
        turn: which of the live servers takes the first.
    """
    live = problem.live[stage]
    route = [home for home in range(problem.job.pipelines) for _ in range(problem.job.micro_batches)]
    for place, unit in enumerate(guests, turn):
        route[unit] = live[place % len(live)]
    return tuple(route)


def chunk_routes(problem: Problem) -> Routes:
    """Balanced routes for servers of several chunks: per chunk, which pipeline's server executes each micro-batch.

    The chunks of one place begin with other peers, so that what one peer gets of each is balanced as a whole; but for
    neighbouring chunks, which stay together. Where pipelines are not alike, each guest goes to the host with the least
    to do so far, the one that executed it at the chunk before among equals; with free routing all micro-batches do.
    """
    if not problem.job.even:
        return _routes_by_load(problem)
    job = problem.job
    routes: list[Sequence[int]] = []
    turns: dict[int, int] = {}
    for chunk, place in enumerate(job.places):
        if chunk and job.places[chunk - 1] == place:
            routes.append(routes[-1])
            continue
        dead = _dead_homes(problem, place)
        guests = [home * job.micro_batches + m for m in range(job.micro_batches) for home in dead]
        turn = turns.get(place, place)
        routes.append(_deal(problem, place, guests, turn))
        turns[place] = turn + len(guests)
    return routes


def _routes_by_load(problem: Problem) -> Routes:
    job, width = problem.job, problem.job.micro_batches
    peers, keeps_home = holders(job), problem.mode.keeps_home
    load = dict.fromkeys(problem.servers, 0)

    def cost(server: Server, chunk: int) -> int:
        return sum(map(placed(job, server).time, problem.cost[chunk]))

    homes: list[tuple[int, int]] = []
    routes = [[unit // width for unit in range(problem.total)] for _ in peers]
    for chunk, each in enumerate(peers):
        for home, brought in enumerate(job.loads):
            if keeps_home and home in problem.live[chunk]:
                load[each[home]] += brought * cost(each[home], chunk)
            else:
                homes.append((chunk, home))
    for chunk, home in homes:
        for unit in range(home * width, home * width + job.loads[home]):
            before = routes[chunk - 1][unit] if chunk else -1

            def rank(host: int) -> tuple[int, bool, bool]:
                server = peers[chunk][host]  # noqa: B023 - used at once
                return load[server] + cost(server, chunk), host != before, host != home  # noqa: B023

            host = min(problem.live[chunk], key=rank)
            load[peers[chunk][host]] += cost(peers[chunk][host], chunk)
            routes[chunk][unit] = host
    return routes
