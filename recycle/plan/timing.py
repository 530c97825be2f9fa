"""The cost function: when everything starts and ends, given the order on each server. It stands here only.

Work is a network of nodes (compute instructions) with durations. A lane is one server's nodes in their order. A node
starts when its predecessor on the lane has ended and the node that it needs has ended ``lag`` earlier.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec


class Lane(NamedTuple):
    """One live server: its stage and its nodes, numbered in execution order."""

    stage: int
    nodes: range


class ActivityNetwork(msgspec.Struct, frozen=True):
    """Work in a given order.

    Attributes:
        duration: time that each node keeps its server busy.
        need: per node, the node of another lane whose result it needs, or -1.
        lag: per node, the time from the end of that need to the earliest start.
        lanes: every live server that has work.
        update: per stage, time from the end of its last node to the end of its optimizer step.
    """

    duration: Sequence[int]
    need: Sequence[int]
    lag: Sequence[int]
    lanes: Sequence[Lane]
    update: Sequence[int]


class Timing(msgspec.Struct, frozen=True):
    """When a network runs.

    Attributes:
        start: start of each node.
        update_start: per stage, when the reduction and the optimizer step begin.
        makespan: end of the last node if all lanes start at 0.
        period: time after which the next iteration can follow in the same pattern.
        sequence: the nodes in an order that respects every wait.
    """

    start: list[int]
    update_start: list[int]
    makespan: int
    period: int
    sequence: list[int]


class Deadlock(Exception):
    """Servers wait for each other. ``stuck`` holds (lane, position) of the node that each waiting lane cannot start."""

    def __init__(self, stuck: list[tuple[int, int]]) -> None:
        super().__init__(f"{len(stuck)} servers wait for each other")
        self.stuck = stuck


class Passes:
    """Longest-path passes over one network; the topological order is found once.

    Args:
        network: the work in its order.

    Raises:
        Deadlock: the order has a cycle.
    """

    def __init__(self, network: ActivityNetwork) -> None:
        self.network = network
        self.sequence = list(executable_order(network.lanes, network.need))
        self.previous = [-1] * len(network.duration)
        self.stage = [0] * len(network.duration)
        for lane in network.lanes:
            before = -1
            for node in lane.nodes:
                self.previous[node] = before
                self.stage[node] = lane.stage
                before = node

    def run(self, release: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Start every node as soon as it can, no stage before its release.

        Returns:
            The start of every node; per stage, the end of its last node; and per stage, the stage whose release
            that end goes back to along a longest path.
        """
        duration, need, lag = self.network.duration, self.network.need, self.network.lag
        previous, stage = self.previous, self.stage
        start = [0] * len(duration)
        end = [0] * len(duration)
        origin = [0] * len(duration)
        for node in self.sequence:
            before = previous[node]
            if before < 0:
                source = stage[node]
                time = release[source]
            else:
                source = origin[before]
                time = end[before]
            other = need[node]
            if other >= 0 and end[other] + lag[node] > time:
                time = end[other] + lag[node]
                source = origin[other]
            start[node] = time
            end[node] = time + duration[node]
            origin[node] = source
        last = list(release)
        roots = list(range(len(self.network.update)))
        for lane in self.network.lanes:
            if lane.nodes and end[lane.nodes[-1]] > last[lane.stage]:
                last[lane.stage] = end[lane.nodes[-1]]
                roots[lane.stage] = origin[lane.nodes[-1]]
        return start, last, roots


def executable_order(lanes: Sequence[Lane], need: Sequence[int]) -> Iterator[int]:
    """The nodes in an order in which all lanes can execute them.

    Raises:
        Deadlock: lanes wait for each other.
    """
    position = [0] * len(lanes)
    done = bytearray(len(need) + 1)
    done[-1] = 1  # where a node that needs nothing looks
    waiting: dict[int, list[int]] = {}
    ready = list(range(len(lanes) - 1, -1, -1))
    while ready:
        lane = ready.pop()
        nodes = lanes[lane].nodes
        for index in range(position[lane], len(nodes)):
            node = nodes[index]
            if not done[need[node]]:
                waiting.setdefault(need[node], []).append(lane)
                position[lane] = index
                break
            done[node] = 1
            yield node
            if node in waiting:
                ready.extend(waiting.pop(node))
        else:
            position[lane] = len(nodes)
    stuck = [(lane, place) for lane, place in enumerate(position) if place < len(lanes[lane].nodes)]
    if stuck:
        raise Deadlock(stuck)


def global_timing(network: ActivityNetwork) -> Timing:
    """Timing of one iteration behind a global optimizer barrier: all servers start at 0, all stages step at the end.

    The period is the makespan and the longest update.

    Raises:
        Deadlock: the order has a cycle.
    """
    passes = Passes(network)
    start, last, _ = passes.run([0] * len(network.update))
    makespan = max(last)
    return Timing(start, [makespan] * len(last), makespan, makespan + max(network.update), passes.sequence)


def staggered_timing(network: ActivityNetwork) -> Timing:
    """Timing of the least period at which the order repeats when each stage steps on its own.

    Stage s may begin its next iteration once its own update has ended, so with release r_s (no server of the stage
    starts before it) and update end E_s the pattern repeats every T if E_s(r) - T <= r_s for every stage. Each E_s is
    the longest path from some release, so the least T is the largest mean length of a cycle of such paths. Found by
    policy iteration: fix T, raise releases to E_s - T, and whenever the paths that set them close a cycle, take its
    mean. Stages with slack thereby start as late as helps and no later.

    Raises:
        Deadlock: the order has a cycle.
    """
    passes = Passes(network)
    stages = len(network.update)
    period = 0
    release = [0] * stages
    rounds = 0
    makespan: int | None = None
    while True:
        start, last, roots = passes.run(release)
        makespan = max(last) if makespan is None else makespan
        end = [time + update for time, update in zip(last, network.update, strict=True)]
        mean = largest_cycle_mean(roots, lambda stage: end[stage] - release[roots[stage]])  # noqa: B023 - used at once
        rounds += 1
        if mean > period or rounds > stages + 1:
            period = max(mean, period + 1)
            release = [0] * stages
            rounds = 0
            continue
        raised = [max(time, stop - period) for time, stop in zip(release, end, strict=True)]
        if raised == release:
            return Timing(start, last, makespan, period, passes.sequence)
        release = raised


def largest_cycle_mean(parent: Sequence[int], length: Callable[[int], int]) -> int:
    """The largest mean, rounded up, over the cycles of a graph in which every vertex has one incoming edge.

    Args:
        parent: where each vertex's edge comes from.
        length: length of the edge that enters a vertex.
    """
    best = 0
    seen = [-1] * len(parent)
    for first in range(len(parent)):
        vertex = first
        while seen[vertex] < 0:
            seen[vertex] = first
            vertex = parent[vertex]
        if seen[vertex] == first:
            total, count, stop = 0, 0, vertex
            while True:
                total += length(vertex)
                count += 1
                vertex = parent[vertex]
                if vertex == stop:
                    break
            best = max(best, -(-total // count))
    return best
