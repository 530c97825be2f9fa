"""Lower bounds on what any plan of a problem can reach, each with its proof.

Where servers hold several chunks, those of ``chunk_bounds`` take their place.

Every rule but the sandwich looks at one server of an otherwise empty pipeline. By counting, some live server of stage s
executes at least ``k = ceil(D * M / live)`` micro-batches; it is called the busiest server of the stage, and none of
the rules becomes weaker when it executes more than k.

The rules see two relaxations of a server's memory, and each holds for any mixture of releases:

- before its I ends a micro-batch holds all its memory, so no more than ``limit // held`` are between F and I;
- what I does not release is held from F to W, so no more than ``limit // (that part)`` are between F and W.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import accumulate
from math import ceil
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from recycle.holding import costs_on, holders, least_updates, longest_update
from recycle.job import Server
from recycle.planner.model.chunk_bounds import chunk_bounds
from recycle.planner.model.equivalent import Twin, alone
from recycle.planner.model.problem import Problem, make_problem

Rule: TypeAlias = Literal["work", "warm-up", "cool-down", "recycling", "last gradient", "sandwich"]


class Bound(msgspec.Struct, frozen=True):
    """A value that no plan of the problem can go below.

    Attributes:
        value: the least period of a staggered problem, in the job's time units; for a global optimizer the least
            makespan of compute, without the optimizer.
        stage: the stage that binds; with several chunks per server, the place of the server.
        rule: the argument that binds.
        pipeline: of the server that binds, where pipelines are not alike.
    """

    value: int
    stage: int
    rule: Rule
    pipeline: int | None = None

    @property
    def proof(self) -> str:
        """What proves it, in words."""
        where = f"stage {self.stage}" if self.pipeline is None else Server(self.pipeline, self.stage)
        return f"{self.rule} of {where}"


def lower_bound(problem: Problem) -> Bound:
    """The strongest bound; among equals that of the simplest rule, and of the first stage."""
    return max(breakdown(problem), key=lambda bound: bound.value)


def breakdown(problem: Problem) -> tuple[Bound, ...]:
    """Every rule at every stage, rule by rule from the simplest on."""
    if not problem.job.even:
        return tuple(sorted(_unequal(problem), key=lambda bound: _ORDER.index(bound.rule)))
    if not problem.job.standard:
        found = [Bound(*each) for each in chunk_bounds(problem)]
        return tuple(sorted(found, key=lambda bound: _ORDER.index(bound.rule)))
    spans = [_busiest_server(problem, stage, trip) for stage, trip in enumerate(round_trips(problem))]
    earliest = heads(problem)
    sandwiches = _sandwiches(problem, [span.last_gradient for span in spans])
    bounds: list[Bound] = []
    for stage, span in enumerate(spans):
        last = problem.cost[stage][2]
        outside = problem.job.stages[stage].update if problem.staggered else earliest[stage]
        rules: tuple[tuple[Rule, int], ...] = (
            ("work", span.work),
            ("warm-up", span.work + span.warm_up),
            ("cool-down", span.work + span.idle),
            ("recycling", span.recycling),
            ("last gradient", span.last_gradient + last),
            ("sandwich", sandwiches[stage] + last),
        )
        bounds += [Bound(outside + length, stage, rule) for rule, length in rules]
    return tuple(sorted(bounds, key=lambda bound: _ORDER.index(bound.rule)))


def _unequal(problem: Problem) -> Iterator[Bound]:
    """Bounds where pipelines are written out.

    Alike. Where they are alike all the same, the bounds are those of the job by number.

    Alone. Where micro-batches stay at home and no server that holds a chunk is dead, the plan of all pipelines holds a
    plan of each alone, whose steps wait for less: so each pipeline's own bounds hold.

    Work. A live server does what its pipeline brings to its chunks, if micro-batches stay at home. The rest, of dead
    homes or of all, the live holders share (``_shared``).
    """
    job = problem.job
    twin = Twin.of(problem)
    if twin is not None:
        for bound in breakdown(twin.problem):
            server = twin.holder(bound.stage)
            yield msgspec.structs.replace(bound, stage=server.stage, pipeline=server.pipeline)
        return
    if problem.mode.keeps_home and problem.intact:
        for pipeline, crew in enumerate(job.crews):
            if not crew:
                continue
            for bound in breakdown(make_problem(alone(job, pipeline, joined=False), (), problem.mode)):
                server = crew[bound.stage]
                yield msgspec.structs.replace(bound, stage=server.stage, pipeline=server.pipeline)
        return
    keeps_home = problem.mode.keeps_home
    own: dict[Server, int] = {}
    for server in problem.servers:
        costs = costs_on(job, server)
        brought = job.loads[job.pipeline_of(server)] if keeps_home else 0
        work = brought * sum(stage.work for stage in costs.values())
        own[server] = work + (least_updates(job, server) if problem.staggered else 0)
        yield Bound(own[server], server.stage, "work", server.pipeline)
    for server, value in _shared(problem, own):
        yield Bound(value, server.stage, "work", server.pipeline)


def _shared(problem: Problem, own: Mapping[Server, int]) -> Iterator[tuple[Server, int]]:
    """How long live servers are busy that share what is not their own, and the first of them.

    Let a chunk be executed k times away from home, by its live holders, each in c at its own speed. A holder with o of
    its own executes no more than (T - o) / c of them in a period of T, rounded down, for one server executes all of a
    micro-batch at a chunk. So these numbers add up to k at least.

    Let several chunks of works w be executed k times each. On a server whose least ratio c / w among those that it
    holds is r, an amount x of all this work takes r x at least. T is not below any o, so the amounts (T - o) / r that
    the holders can execute are none below 0, and add up to the sum of k w at least: T is no less than the sum of o / r
    and k w, over that of 1 / r. The chunks taken together are those with the same live holders; and all of them.

    Args:
        problem: of pipelines that are not alike.
        own: what each live server has to do in any case.
    """
    job, keeps_home = problem.job, problem.mode.keeps_home
    cost = {server: {chunk: stage.work for chunk, stage in costs_on(job, server).items()} for server in own}
    together: dict[tuple[Server, ...], list[int]] = {}
    away: dict[int, int] = {}
    for chunk, peers in enumerate(holders(job)):
        live = tuple(server for server in peers.values() if server in own)
        away[chunk] = sum(job.loads[home] for home, server in peers.items() if not keeps_home or server not in own)
        if not away[chunk] or not job.stages[chunk].work:
            continue
        together.setdefault(live, []).append(chunk)
        slowest = max(own[server] + away[chunk] * cost[server][chunk] for server in live)
        yield (
            live[0],
            bisect_left(
                range(slowest),
                away[chunk],
                key=lambda time: sum(max(0, time - own[each]) // cost[each][chunk] for each in live),
            ),
        )
    for chunks in (*together.values(), [chunk for each in together.values() for chunk in each]):
        ratio = {
            server: min(Fraction(held[chunk], job.stages[chunk].work) for chunk in chunks if chunk in held)
            for server, held in cost.items()
            if not held.keys().isdisjoint(chunks)
        }
        if ratio:
            shared = sum(away[chunk] * job.stages[chunk].work for chunk in chunks)
            mean = (shared + sum(own[each] / ratio[each] for each in ratio)) / sum(1 / each for each in ratio.values())
            yield next(iter(ratio)), ceil(mean)


def period(problem: Problem, value: int) -> int:
    """The time of an iteration of this value: behind a global barrier the longest update comes on top."""
    return value if problem.staggered else value + longest_update(problem.job, problem.dead)


_ORDER: tuple[Rule, ...] = ("work", "warm-up", "cool-down", "recycling", "last gradient", "sandwich")


class _Span(NamedTuple):
    """Least times on the busiest server of a stage, from the start of its first F on.

    Attributes:
        work: all its compute.
        warm_up: idle time before its first I.
        idle: idle time in all.
        recycling: until the end of its last instruction, by the turnover of its memory alone.
        last_gradient: until the end of its last I.
    """

    work: int
    warm_up: int
    idle: int
    recycling: int
    last_gradient: int


def _busiest_server(problem: Problem, stage: int, trip: int) -> _Span:
    """What one server with k micro-batches needs.

    The round trip, ``trip``, is the least time between the end of an F and the start of its I.
    ``open`` is how many micro-batches can be between F and I, ``kept`` how many between F and W, of k at most.

    Warm-up. Before its first I ends the server runs nothing but F, ``open`` of them at most. The first I starts a round
    trip after the first F ends, and what the other F leave of it is idle.

    Cool-down. Of the round trip of its last F the server can fill no more than the I of the other ``open - 1`` and the
    W of the other ``kept - 1``. If k exceeds ``open``, the last F waits for memory and so follows the first I: the
    gap is not that of the warm-up and adds to it. Otherwise the two may be the same gap.

    Recycling. When the j-th F starts, at least j - capacity of the earlier ones have released memory, so it is at least
    one hold after the (j - capacity)-th.

    Last gradient, the greatest of:

    - all F and I, the warm-up, and k - ``kept`` W: so many are done when the last F starts, for it needs their memory;
    - the recycling before the last F, and that micro-batch's own way to the end of I;
    - what is done when the last F ends (all F; if k exceeds ``open``, the warm-up, k - ``open`` I and k - ``kept`` W),
      its round trip and its I;
    - what refilling the memory takes (``_refilled``).
    """
    forward, gradient, weight = problem.cost[stage]
    settings = problem.job.stages[stage]
    most = problem.least_share(stage)
    open_ = min(most, settings.capacity)
    # Between F and I it holds all of that, and I may take more before it frees some.
    rest = min(settings.held, problem.release[stage][2])
    kept = min(most, settings.limit // rest) if rest else most

    warm_up = max(0, trip - (open_ - 1) * forward)
    cool_down = max(0, trip - (open_ - 1) * gradient - (kept - 1) * weight)
    waits = most > open_
    turnover = max(
        _turnover(most, open_, forward, forward + trip + gradient),
        _turnover(most, kept, forward, forward + trip + gradient + weight),
    )
    last_gradient = max(
        most * (forward + gradient) + warm_up + (most - kept) * weight,
        turnover + forward + trip + gradient,
        most * forward
        + (warm_up if waits else 0)
        + (most - open_) * gradient
        + (most - kept) * weight
        + trip
        + gradient,
        _refilled(most, open_, forward, trip, gradient, 0),
        _refilled(most, kept, forward, trip, gradient, weight),
    )
    return _Span(
        work=most * (forward + gradient + weight),
        warm_up=warm_up,
        idle=warm_up + cool_down if waits else max(warm_up, cool_down),
        recycling=turnover + forward + trip + gradient + weight,
        last_gradient=last_gradient,
    )


def heads(problem: Problem) -> list[int]:
    """Earliest start of each stage's first F: that of the first micro-batch there, from 0 on."""
    steps = (problem.cost[stage][0] + problem.job.latency[stage] for stage in range(problem.job.depth - 1))
    return list(accumulate(steps, initial=0))


def round_trips(problem: Problem) -> list[int]:
    """Per stage, the way of a micro-batch from there to the last stage and back: F and I of the stages behind."""
    steps = (
        problem.cost[stage][0] + problem.cost[stage][1] + 2 * problem.job.latency[stage - 1]
        for stage in range(problem.job.depth - 1, 0, -1)
    )
    return list(accumulate(steps, initial=0))[::-1]


def _turnover(most: int, capacity: int, forward: int, hold: int) -> int:
    """Least time from the first F of a server to its last, if each one's memory is held for ``hold`` at least."""
    rounds, others = divmod(most - 1, capacity)
    return rounds * hold + others * forward


def _refilled(most: int, capacity: int, forward: int, trip: int, gradient: int, weight: int) -> int:
    """Least time from the first F of a server to the end of its last I, because its memory must be refilled.

    Let r capacities be fewer than the k micro-batches, and t be the end of the first round trip, r - 1 holds later. F
    number (r - 1) * capacity + 1 starts r - 1 holds after the first or later, so at most (r - 1) * capacity I start
    before t. The F from number r * capacity + 1 on need further releases, so they start after t; and the last of them
    needs k - capacity releases, so that k - r * capacity I (and W, if W releases) run between t and it. After it come a
    round trip and its I. The sum is linear in r: its best r is the least or the largest.
    """
    rounds = (most - 1) // capacity
    if not rounds:
        return 0
    hold = forward + trip + gradient + weight
    unit = forward + gradient + weight
    refills = max((r - 1) * hold + (most - r * capacity) * unit for r in (1, rounds))
    return forward + trip + refills + trip + gradient


def _sandwiches(problem: Problem, last_gradient: list[int]) -> list[int]:
    """Least time, per stage, from its first F to its last I because of the stages behind it; 0 for the last stage.

    What the busiest server of a later stage executes first has passed this stage before, and what it executes last
    still has to come back: a busy stage stretches the window of every stage before it.
    """
    job = problem.job
    lengths = [0] * job.depth
    for stage in range(job.depth - 2, -1, -1):
        inner = max(lengths[stage + 1], last_gradient[stage + 1])
        lengths[stage] = problem.cost[stage][0] + inner + problem.cost[stage][1] + 2 * job.lag(stage, stage + 1)
    return lengths
