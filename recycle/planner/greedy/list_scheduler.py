"""The greedy list scheduler: every idle server starts the most urgent task that is ready and fits its memory.

Micro-batches are ranked by urgency, and tasks numbered ``(rank * P + stage) * 3 + kind`` here: all that a task's kind
and stage decide is looked up by ``task % (3 * P)``, its successors are at fixed distances, and among tasks of one kind
on one server the smallest number is the most urgent.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Literal, NamedTuple

import msgspec

from recycle.job import Server
from recycle.planner.model.problem import Problem, Programs
from recycle.planner.model.routing import Routes, balanced_routes


class GreedyPolicy(msgspec.Struct, frozen=True):
    """What a greedy scheduler prefers.

    Attributes:
        eager: F goes before I, where it may; otherwise I goes first. W comes last, but for ``steady``.
        ahead: how many micro-batches a server may hold between F and I, within its memory. ``limit`` sets no other
            limit. ``share`` is 1F1B's P - s at stage s, and more where fewer servers are live; with memory for P it
            makes ZB-H1 of Qi et al., Zero Bubble Pipeline Parallelism, 2024. ``below`` and ``above`` are one more than
            the F that fit into the time from the end of the first F to its I in an empty pipeline, rounded down and
            up; with equal costs they make ZB-H2.
        patient: rather waits than starts a W, if F or I are on their way that arrive before the W would end, unless F
            needs the W's memory.
        favour: by how many numbers the micro-batches of pipelines with a dead server go before the others.
        steady: W goes before F once more than s of them wait at stage s, as in ZB-H1: memory comes free in time where
            results travel long.
    """

    eager: bool
    ahead: Literal["limit", "share", "below", "above"]
    patient: bool = False
    favour: float = 0.0
    steady: bool = False


POLICIES = (
    GreedyPolicy(True, "below", favour=-0.5),
    GreedyPolicy(False, "share", patient=True),
    GreedyPolicy(True, "above", favour=-2.5),
    GreedyPolicy(True, "share", favour=0.5),
    GreedyPolicy(False, "limit"),
    GreedyPolicy(False, "below", patient=True, favour=-0.5),
    GreedyPolicy(True, "above", favour=0.5),
    GreedyPolicy(True, "share", favour=-2.5),
    GreedyPolicy(True, "share", patient=True, steady=True),
)
"""Each was chosen as the one that helped those before it most, on a few hundred small jobs; the last for latency."""


class _Rules(NamedTuple):
    """What tasks need and free, in tables indexed by ``stage * 3 + kind``.

    Attributes:
        cost: how long a task keeps its server busy.
        successors: (distance in task numbers, lag) of each task that waits for it.
        waits: how many tasks it waits for; -1 for kinds that do not exist.
        released: memory it frees at its end.
    """

    cost: list[int]
    successors: list[list[tuple[int, int]]]
    waits: list[int]
    released: list[int]


def list_schedule(problem: Problem, policy: GreedyPolicy = POLICIES[0], routes: Routes | None = None) -> Programs:
    """Schedule greedily, in one to three microseconds per task.

    Args:
        problem: what to plan.
        policy: what the servers prefer.
        routes: which server executes what; balanced if none are given.

    Returns:
        A legal program for every live server.
    """
    routes = balanced_routes(problem) if routes is None else routes
    micro_batches, depth = problem.job.micro_batches, problem.job.depth
    hit = {server.pipeline for server in problem.dead}
    units = sorted(
        range(problem.total),
        key=lambda unit: (unit % micro_batches - policy.favour * (unit // micro_batches in hit), unit),
    )
    place = [routes[stage][unit] * depth + stage for unit in units for stage in range(depth)]
    programs = _run(problem, policy, place)
    return {
        Server(pipeline, stage): [
            units[task // (3 * depth)] * 3 + task % 3 for task in programs[pipeline * depth + stage]
        ]
        for stage, live in enumerate(problem.live)
        for pipeline in live
    }


def _rules(problem: Problem) -> _Rules:
    depth = problem.job.depth
    successors: list[list[tuple[int, int]]] = [[] for _ in range(3 * depth)]
    waits = [-1] * (3 * depth)
    for stage, kinds in enumerate(problem.needs):
        for kind, needs in enumerate(kinds):
            task = stage * 3 + kind
            waits[task] = len(needs)
            for need in needs:
                before = need.stage * 3 + need.kind
                successors[before].append((task - before, need.lag))
    cost = [cost for stage in problem.cost for cost in stage]
    return _Rules(cost, successors, waits, [amount for stage in problem.release for amount in stage])


def _ahead(problem: Problem, policy: GreedyPolicy, stage: int) -> int:
    job = problem.job
    if policy.ahead == "limit":
        return problem.total
    if policy.ahead == "share":
        return -(-(job.depth - stage) * job.pipelines // len(problem.live[stage]))
    trip = sum(
        problem.cost[other][0] + problem.cost[other][1] + job.lag(other - 1, other) + job.lag(other, other - 1)
        for other in range(stage + 1, job.depth)
    )
    forward = max(problem.cost[stage][0], 1)
    return 1 + (trip if policy.ahead == "below" else trip + forward - 1) // forward


def _run(problem: Problem, policy: GreedyPolicy, place: Sequence[int]) -> list[list[int]]:
    """The tasks of every server ``pipeline * P + stage`` in order, by the server of each ``rank * P + stage``."""
    cost, successors, waits, released = _rules(problem)
    depth, width, servers = problem.job.depth, len(cost), problem.job.pipelines * problem.job.depth
    held = [stage[0] for stage in problem.acquire] * problem.job.pipelines
    taken = [stage[1] for stage in problem.acquire] * problem.job.pipelines
    room = [stage.limit for stage in problem.job.stages] * problem.job.pipelines
    ahead = [_ahead(problem, policy, stage) for stage in range(depth)] * problem.job.pipelines
    eager, patient, steady = policy.eager, policy.patient, policy.steady
    waiting = waits * problem.total
    ready: tuple[list[list[int]], ...] = tuple([[] for _ in range(servers)] for _ in range(3))
    forwards, gradients, weights = ready
    busy = bytearray(servers)
    # When tasks of other servers will arrive, as far as that is known: those that arrive at the end of one that runs.
    announced: list[list[int]] = [[] for _ in range(servers)]
    programs: list[list[int]] = [[] for _ in range(servers)]
    # Events by time: the task where one ends, its complement where one becomes ready.
    events: dict[int, list[int]] = {0: [~task for task in range(len(waiting)) if not waiting[task]]}
    times = [0]
    while times:
        now = heappop(times)
        woken: list[int] = []
        # All ends and arrivals of an instant are known before a server chooses.
        for event in events.pop(now):
            if event < 0:
                task = ~event
                server = place[task // 3]
                heappush(ready[task % 3][server], task)
                woken.append(server)
                continue
            server = place[event // 3]
            rule = event % width
            room[server] += released[rule]
            ahead[server] += rule % 3 == 1
            busy[server] = 0
            woken.append(server)
            for distance, lag in successors[rule]:
                task = event + distance
                waiting[task] -= 1
                if waiting[task]:
                    continue
                if not lag:
                    server = place[task // 3]
                    heappush(ready[task % 3][server], task)
                    woken.append(server)
                elif now + lag in events:
                    events[now + lag].append(~task)
                else:
                    events[now + lag] = [~task]
                    heappush(times, now + lag)
        for server in woken:
            if busy[server]:
                continue
            forward, gradient = forwards[server], gradients[server]
            fits = forward and room[server] >= held[server] + taken[server]
            if gradient and not (eager and fits and ahead[server]):
                # Without W that wait there is room for an I.
                if room[server] >= taken[server]:
                    task = heappop(gradient)
                    room[server] -= taken[server]
                else:
                    task = heappop(weights[server])
            elif steady and len(weights[server]) > server % depth:
                task = heappop(weights[server])
            elif fits and ahead[server]:
                task = heappop(forward)
                room[server] -= held[server]
                ahead[server] -= 1
            elif weights[server]:
                if patient and (fits or not forward):
                    coming = announced[server] = [arrival for arrival in announced[server] if arrival > now]
                    if coming and min(coming) < now + cost[weights[server][0] % width]:
                        continue
                task = heappop(weights[server])
            else:
                continue
            rule = task % width
            end = now + cost[rule]
            busy[server] = 1
            programs[server].append(task)
            if patient:
                for distance, lag in successors[rule]:
                    if waiting[task + distance] == 1:
                        announced[place[(task + distance) // 3]].append(end + lag)
            if end in events:
                events[end].append(task)
            else:
                events[end] = [task]
                heappush(times, end)
    return programs
