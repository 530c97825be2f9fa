"""The cost function: when everything starts and ends, given the order on each server. It stands here only.

Work is a network of nodes (compute instructions) with durations. A lane is one server's nodes in their order. A node
starts when its predecessor on the lane has ended and the node that it needs has ended ``lag`` earlier.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec


class Lane(NamedTuple):
    """One live server.

    Attributes:
        nodes: its nodes, numbered in execution order.
        chunks: the chunks that it holds.
        last: its last node of each of these chunks, -1 where it has none.
        update: how long the reduction and the optimizer step of each of these chunks keep it busy.
    """

    nodes: range
    chunks: tuple[int, ...]
    last: tuple[int, ...]
    update: tuple[int, ...]


class Update(NamedTuple):
    """The reduction and the optimizer step of one chunk on one server."""

    chunk: int
    start: int
    end: int


class ActivityNetwork(msgspec.Struct, frozen=True):
    """Work in a given order.

    Attributes:
        duration: time that each node keeps its server busy.
        need: per node, the node of another lane whose result it needs, or -1.
        lag: per node, the time from the end of that need to the earliest start.
        lanes: every live server.
        chunks: how many the model has.
    """

    duration: Sequence[int]
    need: Sequence[int]
    lag: Sequence[int]
    lanes: Sequence[Lane]
    chunks: int


class Timing(msgspec.Struct, frozen=True):
    """When a network runs.

    Attributes:
        start: start of each node.
        updates: per lane, its updates in their order.
        makespan: end of the last node if all lanes start at 0.
        period: time after which the next iteration can follow in the same pattern.
        sequence: the nodes in an order that respects every wait.
    """

    start: list[int]
    updates: list[tuple[Update, ...]]
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
        self.lane = [0] * len(network.duration)
        for number, lane in enumerate(network.lanes):
            before = -1
            for node in lane.nodes:
                self.previous[node] = before
                self.lane[node] = number
                before = node

    def run(self, release: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Start every node as soon as it can, no lane before its release.

        Returns:
            The start and the end of every node; and the lane whose release that end goes back to along a longest path.
        """
        duration, need, lag = self.network.duration, self.network.need, self.network.lag
        previous, lane = self.previous, self.lane
        start = [0] * len(duration)
        end = [0] * len(duration)
        origin = [0] * len(duration)
        for node in self.sequence:
            before = previous[node]
            if before < 0:
                source = lane[node]
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
        return start, end, origin

    def last_nodes(self, end: Sequence[int]) -> list[int]:
        """Per chunk, the node that ends last on any lane; its gradients are complete then."""
        found = [-1] * self.network.chunks
        for lane in self.network.lanes:
            for chunk, node in zip(lane.chunks, lane.last, strict=True):
                if node >= 0 and (found[chunk] < 0 or end[node] > end[found[chunk]]):
                    found[chunk] = node
        return found

    def updates(self, lane: Lane, ready: Sequence[int], free: int) -> tuple[tuple[Update, ...], int]:
        """The updates of a lane, one at a time: each when its chunk is ready for it and the lane is free.

        Taking them by the time at which they are ready ends them as early as any order does.

        Args:
            lane: whose.
            ready: per chunk, when its gradients are complete.
            free: when the lane has nothing else to do.

        Returns:
            The updates; and the chunk whose gradients the last of them has waited for, -1 if none had to be waited for.
        """
        time, cause = free, -1
        found = []
        for chunk, update in sorted(
            zip(lane.chunks, lane.update, strict=True), key=lambda each: (ready[each[0]], each[0])
        ):
            if ready[chunk] > time:
                time, cause = ready[chunk], chunk
            found.append(Update(chunk, time, time + update))
            time = found[-1].end
        return tuple(found), cause


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
    """Timing of one iteration behind a global optimizer barrier: all servers start at 0, all chunks step at the end.

    The period is the makespan and the longest time that a server's updates take.

    Raises:
        Deadlock: the order has a cycle.
    """
    passes = Passes(network)
    start, end, _ = passes.run([0] * len(network.lanes))
    makespan = max(end, default=0)
    ready = [makespan] * network.chunks
    updates = [passes.updates(lane, ready, makespan)[0] for lane in network.lanes]
    period = makespan + max(sum(lane.update) for lane in network.lanes)
    return Timing(start, updates, makespan, period, passes.sequence)


def staggered_timing(network: ActivityNetwork) -> Timing:
    """Timing of the least period at which the order repeats when each server steps on its own.

    Server x may begin its next iteration once its own updates have ended, so with release r_x (x does not start before
    it) and end of updates E_x the pattern repeats every T if E_x(r) - T <= r_x for every server. Each E_x is the
    longest path from some release, so the least T is the largest mean length of a cycle of such paths. Found by policy
    iteration: fix T, raise releases to E_x - T, and whenever the paths that set them close a cycle, take its mean.
    Servers with slack thereby start as late as helps and no later.

    Peers of one stage end together where each server holds one chunk, so that their releases are one.

    Raises:
        Deadlock: the order has a cycle.
    """
    passes = Passes(network)
    lanes = network.lanes
    # Who executes nothing waits for its updates only, and they may begin as late as helps.
    least = max((sum(lane.update) for lane in lanes if not lane.nodes), default=0)
    period = least
    release = [0] * len(lanes)
    rounds = 0
    makespan: int | None = None
    while True:
        start, finish, origin = passes.run(release)
        makespan = max(finish, default=0) if makespan is None else makespan
        last = passes.last_nodes(finish)
        ready = [finish[node] if node >= 0 else 0 for node in last]
        updates: list[tuple[Update, ...]] = []
        end: list[int] = []
        roots: list[int] = []
        for number, lane in enumerate(lanes):
            free = finish[lane.nodes[-1]] if lane.nodes else release[number]
            mine, cause = passes.updates(lane, ready, free)
            updates.append(mine)
            # An empty lane is nobody's root and its own: it binds nothing beyond the least period.
            end.append(mine[-1].end if lane.nodes else release[number])
            roots.append(origin[last[cause] if cause >= 0 else lane.nodes[-1]] if lane.nodes else number)
        mean = largest_cycle_mean(roots, lambda lane: end[lane] - release[roots[lane]])  # noqa: B023 - used at once
        rounds += 1
        if mean > period or rounds > len(lanes) + 1:
            period = max(mean, period + 1)
            release = [0] * len(lanes)
            rounds = 0
            continue
        raised = [max(time, stop - period) for time, stop in zip(release, end, strict=True)]
        if raised == release:
            return Timing(start, updates, makespan, period, passes.sequence)
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
