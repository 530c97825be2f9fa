"""The large-scale scheduler: hundreds of pipelines in seconds.

Two things are different at scale. A stage has many live peers, so the micro-batches of a dead server can be dealt out
so thinly that each peer is disturbed once or twice per iteration. And pipelines run nearly in step, so events come in
batches: the tasks of one kind that start together on one stage also end together, and one loop handles them with all
that the stage and the kind decide looked up once.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from recycle.job import Server
from recycle.planner.model.bounds import lower_bound, round_trips
from recycle.planner.model.problem import Problem, Programs
from recycle.planner.model.routing import Routes, dealt_routes

EFFORT = 200_000
"""How many tasks of the whole problem are simulated in search of a better policy in any case, beyond the first
simulation."""


class BatchPolicy(NamedTuple):
    """What servers prefer, in percent: whole numbers, so that every machine decides alike.

    Attributes:
        depth: how often over the open micro-batches of a server (between F and I) should fill their round trip, if it
            executes F and I in turn. Below that it prefers F to I.
        tail: the share of its memory limit that the last stage uses; the share grows to all of it towards the first
            stage. A micro-batch without memory waits upstream, and W that would have waited are executed meanwhile.
    """

    depth: int
    tail: int


POLICIES = (
    BatchPolicy(110, 100),
    BatchPolicy(160, 100),
    BatchPolicy(90, 100),
    BatchPolicy(60, 100),
    BatchPolicy(30, 60),
    BatchPolicy(60, 40),
    BatchPolicy(60, 30),
    BatchPolicy(90, 20),
    BatchPolicy(60, 10),
)
"""Found by search over shapes, limits and latencies: every one is the best of all somewhere."""


class SimulatedSchedule(NamedTuple):
    """A simulated iteration.

    Attributes:
        programs: ``programs[stage][pipeline]``, the tasks of a server in order; empty if it has none.
        value: with every task started as soon as it can, the longest window of a stage, or the makespan behind a
            global optimizer. The value of the programs is this or less, because stages may also start later.
    """

    programs: list[list[list[int]]]
    value: int


def schedule_large(problem: Problem, may_go_on: Callable[[], bool] = lambda: False) -> Programs:
    """A plan of good quality, in time proportional to its size.

    The policies are ranked on one pipeline without failures. The best are tried on the whole problem until one meets
    the lower bound. Without failures all pipelines are alike, and one is enough.

    Args:
        problem: what to plan.
        may_go_on: asked before each policy beyond those that ``EFFORT`` allows, whether it is tried.
    """
    routes = dealt_routes(problem)
    bound = lower_bound(problem).value
    alone = [[0] * problem.job.micro_batches] * problem.job.depth
    trials = {policy: simulate(problem, alone, policy) for policy in POLICIES}
    ranking = sorted(POLICIES, key=lambda policy: trials[policy].value)
    if not problem.dead:
        return _copies(problem, trials[ranking[0]].programs)
    best: SimulatedSchedule | None = None
    free = 1 + EFFORT // (problem.total * problem.job.depth * problem.kinds)
    for tried, policy in enumerate(ranking):
        if tried >= free and not may_go_on():
            break
        schedule = simulate(problem, routes, policy)
        if best is None or schedule.value < best.value:
            best = schedule
        if best.value <= bound:
            break
    assert best is not None
    return {
        Server(pipeline, stage): best.programs[stage][pipeline]
        for stage, live in enumerate(problem.live)
        for pipeline in live
    }


def simulate(problem: Problem, routes: Routes, policy: BatchPolicy) -> SimulatedSchedule:
    """Greedy list scheduling, a batch of equal events at a time.

    Args:
        problem: the costs, limits and dependencies.
        routes: which server executes each micro-batch at each stage; its length says how many pipelines there are.
        policy: what servers prefer.
    """
    stages = [_Stage(problem, number, routes[number], policy) for number in range(problem.job.depth)]
    followers = _followers(problem)
    micro_batches = problem.job.micro_batches
    homes = range(len(routes[0]) // micro_batches)
    order = count()
    everything = [home * micro_batches + number for number in range(micro_batches) for home in homes]
    # Time, order, stage, kind, micro-batches, and whether these tasks end now or what they waited for arrives now.
    agenda: list[tuple[int, int, int, int, list[int], bool]] = [
        (0, next(order), number, kind, everything, False)
        for number, kinds in enumerate(problem.needs)
        for kind, needs in enumerate(kinds)
        if not needs
    ]
    while agenda:
        now = agenda[0][0]
        while agenda and agenda[0][0] == now:
            _, _, number, kind, units, ends = heappop(agenda)
            if not ends:
                stages[number].arrive(kind, units)
                continue
            stages[number].end(now, kind, units)
            for target, follower, lag in followers[number, kind]:
                if lag:
                    heappush(agenda, (now + lag, next(order), target, follower, units, False))
                else:
                    stages[target].arrive(follower, units)
        for number, stage in enumerate(stages):
            if stage.awake:
                for kind, units in stage.start(now):
                    heappush(agenda, (now + stage.cost[kind], next(order), number, kind, units, True))
    if problem.staggered:
        value = max(stage.last - stage.first + stage.update for stage in stages)
    else:
        value = max(stage.last for stage in stages)
    return SimulatedSchedule([stage.programs for stage in stages], value)


class _Stage:
    """The servers of one stage during a simulation, in lists by pipeline."""

    def __init__(self, problem: Problem, number: int, route: Sequence[int], policy: BatchPolicy) -> None:
        settings = problem.job.stages[number]
        servers = len(route) // problem.job.micro_batches
        behind = problem.job.depth - 1 - number
        others = max(1, problem.job.depth - 1)
        share = min(100 * others, policy.tail * others + 150 * behind)
        self.cost = problem.cost[number]
        self.release = problem.release[number]
        self.held, self.taken, _ = problem.acquire[number]
        self.update = settings.update
        in_turn = max(1, self.cost[0] + self.cost[1])
        self.wanted = -(-(2 * policy.depth * round_trips(problem)[number] + 100 * in_turn) // (200 * in_turn))
        self.route = route
        self.micro_batches = problem.job.micro_batches
        self.whole = len(problem.live[number]) == problem.job.pipelines
        self.waiting = [[deque[int]() for _ in range(servers)] for _ in range(3)]
        self.room = [max(settings.needs(1), settings.limit * share // (100 * others))] * servers
        self.open = [0] * servers
        self.busy = bytearray(servers)
        self.awake: list[int] = []
        self.programs: list[list[int]] = [[] for _ in range(servers)]
        self.first = -1
        self.last = 0

    def arrive(self, kind: int, units: list[int]) -> None:
        """Tasks have become ready.

        The I of a guest, a micro-batch whose home is elsewhere, goes first: a home without its server waits for
        every one of its guests, a host for few.
        """
        route, waiting, micro_batches = self.route, self.waiting[kind], self.micro_batches
        hosts = [route[unit] for unit in units]
        self.awake += hosts
        if kind != 1 or self.whole:
            for host, unit in zip(hosts, units, strict=True):
                waiting[host].append(unit)
        else:
            for host, unit in zip(hosts, units, strict=True):
                if host == unit // micro_batches:
                    waiting[host].append(unit)
                else:
                    waiting[host].appendleft(unit)

    def end(self, now: int, kind: int, units: list[int]) -> None:
        """Tasks have ended, their servers are idle."""
        route, busy, room, release = self.route, self.busy, self.room, self.release[kind]
        hosts = [route[unit] for unit in units]
        self.awake += hosts
        self.last = now
        for host in hosts:
            busy[host] = 0
            room[host] += release

    def start(self, now: int) -> Iterator[tuple[int, list[int]]]:
        """Let each idle server start what it prefers, and give what was started by kind."""
        busy, room, open_, programs = self.busy, self.room, self.open, self.programs
        taken, wanted, weight_makes_room = self.taken, self.wanted, self.release[2] > 0
        # An F leaves room for an I: without W that wait, that always fits.
        needed = self.held + taken
        forward, gradient, weight = waiting = self.waiting
        started: tuple[list[int], list[int], list[int]] = ([], [], [])
        acquires, opens = (self.held, taken, 0), (1, -1, 0)
        for host in self.awake:
            if busy[host]:
                continue
            if forward[host] and open_[host] < wanted:
                if room[host] >= needed:
                    kind = 0
                elif weight_makes_room and weight[host]:
                    kind = 2
                elif gradient[host]:
                    kind = 1
                elif weight[host]:
                    kind = 2
                else:
                    continue
            elif gradient[host]:
                kind = 1 if room[host] >= taken else 2
            elif forward[host] and room[host] >= needed:
                kind = 0
            elif weight[host]:
                kind = 2
            else:
                continue
            unit = waiting[kind][host].popleft()
            busy[host] = 1
            room[host] -= acquires[kind]
            open_[host] += opens[kind]
            programs[host].append(unit * 3 + kind)
            started[kind].append(unit)
        self.awake.clear()
        for kind, units in enumerate(started):
            if units:
                if self.first < 0:
                    self.first = now
                yield kind, units


def _followers(problem: Problem) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
    """What becomes ready when a task of a stage and kind ends: the stage, the kind and the lag of each.

    A task that needs several others follows the one that itself comes after the rest, so that one event makes it ready.
    """
    graph = {
        (stage, kind): [(need.stage, need.kind) for need in needs]
        for stage, kinds in enumerate(problem.needs)
        for kind, needs in enumerate(kinds)
    }
    followers: dict[tuple[int, int], list[tuple[int, int, int]]] = {node: [] for node in graph}
    known: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for stage, kind in TopologicalSorter(graph).static_order():
        before = known[stage, kind] = set(graph[stage, kind]).union(*(known[node] for node in graph[stage, kind]))
        if before:
            last = max(problem.needs[stage][kind], key=lambda need: len(known[need.stage, need.kind]))
            assert before == known[last.stage, last.kind] | {(last.stage, last.kind)}
            followers[last.stage, last.kind].append((stage, kind, last.lag))
    return followers


def _copies(problem: Problem, programs: list[list[list[int]]]) -> Programs:
    """The plan of one pipeline, for all of them."""
    step = 3 * problem.job.micro_batches
    return {
        Server(pipeline, stage): [task + pipeline * step for task in programs[stage][0]]
        for stage in range(problem.job.depth)
        for pipeline in range(problem.job.pipelines)
    }
