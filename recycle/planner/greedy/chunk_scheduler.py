"""The greedy list scheduler for servers that hold several chunks.

Every idle server starts what its policy prefers among the tasks that are ready and safe. Safe is what keeps room for
the micro-batches that go first: a server whose memory is full of F of its first chunk could not run any F of its
second, and nothing would ever be released. So micro-batches are ranked, and an F may start if every micro-batch of a
lower rank could still run its remaining F on this server with the memory that it and those of higher rank leave. Then
the lowest micro-batch that is not done can always go on, and so all end: Dijkstra's banker's algorithm, with one order.
What an I takes on top is left free by every F. An I that finds it taken waits for W, which wait for nothing.

Micro-batches are ranked by their number, and tasks numbered ``(rank * C + chunk) * 3 + kind`` for C chunks.
"""

from bisect import insort
from collections.abc import Sequence
from heapq import heappop, heappush

import msgspec

from recycle.holding import holders, placed
from recycle.placement import PlacedServer
from recycle.planner.model.chunk_bounds import round_trip
from recycle.planner.model.problem import Problem, Programs
from recycle.planner.model.routing import Routes, chunk_routes


class ChunkPolicy(msgspec.Struct, frozen=True):
    """What a server prefers.

    Attributes:
        fill: the share of its memory, in percent, up to which a server takes F before I.
        deep: of F, those of the last chunk first; otherwise those of the micro-batch of the lowest rank.
        late: of I, those of the first chunk first, which are nearest to the end; otherwise those of the last chunk.
        frees: W goes before I while an F waits for memory.
        steady: W goes before I as long as the server has F to come, so that servers keep step when memory does not make
            them; it is then followed by the I that are left.
        ahead: how many micro-batches of a chunk a server may hold between F and I, in percent of what its round trip
            needs at the pace of the busiest server; 0 sets no limit but memory. Where results travel long it keeps
            memory for all chunks.
        patient: rather waits than starts a W, if F or I are on their way that arrive before the W would end.
    """

    fill: int
    deep: bool = True
    late: bool = False
    frees: bool = False
    steady: bool = False
    ahead: int = 0
    patient: bool = False


POLICIES = (
    ChunkPolicy(100, deep=True, late=True, frees=True),
    ChunkPolicy(0, deep=True, late=False),
    ChunkPolicy(100, deep=True, late=True, frees=True, steady=True),
    ChunkPolicy(100, deep=False, late=True, frees=True),
    ChunkPolicy(100, deep=False, late=True, ahead=130),
    ChunkPolicy(50, deep=True, late=True, ahead=160),
    ChunkPolicy(50, deep=False, late=True, frees=True),
    ChunkPolicy(0, deep=False, late=True, ahead=100),
    ChunkPolicy(100, deep=True, late=False, ahead=115),
    ChunkPolicy(50, deep=False, late=True, frees=True, ahead=130),
    ChunkPolicy(0, deep=True, late=True),
    ChunkPolicy(0, deep=True, late=False, frees=True),
    ChunkPolicy(100, deep=True, late=True, frees=True, patient=True),
    ChunkPolicy(0, deep=False, late=False, frees=True, patient=True),
    ChunkPolicy(50, deep=True, late=False, frees=True, steady=True),
)
"""Each is the best of all somewhere, among V-shaped and interleaved jobs with and without latency."""


def schedule_chunks(problem: Problem, policy: ChunkPolicy, routes: Routes | None = None) -> Programs:
    """Schedule greedily.

    Args:
        problem: what to plan.
        policy: what the servers prefer.
        routes: per chunk, which pipeline's server executes each micro-batch; balanced if none are given.

    Returns:
        A legal program for every live server.
    """
    routes = chunk_routes(problem) if routes is None else routes
    simulation = _Simulation(problem, policy, routes)
    simulation.run()
    programs = simulation.programs()
    if policy.ahead and sum(map(len, programs.values())) < problem.tasks:
        # Who may be ahead is not chosen by rank, so that around dead servers all can wait for each other.
        return schedule_chunks(problem, msgspec.structs.replace(policy, ahead=0), routes)
    return programs


class _Lane:
    """One server during a simulation."""

    __slots__ = (
        "announced",
        "busy",
        "cost",
        "flight",
        "held",
        "left",
        "open",
        "order",
        "ready",
        "rest",
        "room",
        "slot",
        "tasks",
        "unstarted",
    )

    def __init__(self, here: PlacedServer, cost: Sequence[int], ahead: list[int]) -> None:
        self.room = here.limit
        self.cost = list(map(here.time, cost))
        self.slot = {chunk: slot for slot, chunk in enumerate(here.chunks)}
        self.busy = False
        self.ready: list[list[list[int]]] = [[[] for _ in ahead] for _ in range(3)]
        self.open = ahead
        self.left = 0
        self.flight: list[int] = []
        self.held: dict[int, int] = {}
        self.rest: dict[int, int] = {}
        self.order: list[int] = []
        self.unstarted = 0
        self.announced: list[int] = []
        self.tasks: list[int] = []


class _Simulation:
    """One run of the scheduler."""

    def __init__(self, problem: Problem, policy: ChunkPolicy, routes: Routes) -> None:
        job = problem.job
        self.problem = problem
        self.policy = policy
        self.count = count = len(job.stages)
        self.units = sorted(problem.units, key=lambda unit: (unit % job.micro_batches, unit))
        self.servers = problem.servers
        numbers = {server: number for number, server in enumerate(self.servers)}
        peers = [{pipeline: numbers.get(server, -1) for pipeline, server in each.items()} for each in holders(job)]
        self.place = [peers[chunk][routes[chunk][unit]] for unit in self.units for chunk in range(count)]
        ahead = [open_at_once(problem, policy.ahead, chunk) for chunk in range(count)]
        cost = [cost for stage in problem.cost for cost in stage]
        here = [placed(job, server) for server in self.servers]
        self.lanes = [_Lane(each, cost, [ahead[chunk] for chunk in each.chunks]) for each in here]
        for rank in range(len(self.units)):
            for chunk in range(count):
                lane = self.lanes[self.place[rank * count + chunk]]
                if rank not in lane.rest:
                    lane.order.append(rank)
                    lane.rest[rank] = 0
                lane.left += 1
                lane.rest[rank] += problem.acquire[chunk][0]
        self.acquire = [amount for stage in problem.acquire for amount in stage]
        self.release = [amount for stage in problem.release for amount in stage]
        self.reserve = [problem.reserve(each.chunks) for each in here]
        self.limits = [each.limit - reserve for each, reserve in zip(here, self.reserve, strict=True)]
        self.fill = [
            reserve + limit - limit * policy.fill // 100
            for limit, reserve in zip(self.limits, self.reserve, strict=True)
        ]
        self.successors: list[list[tuple[int, int]]] = [[] for _ in range(3 * count)]
        self.waits = [-1] * (3 * count)
        for chunk, kinds in enumerate(problem.needs):
            for kind, needs in enumerate(kinds):
                task = chunk * 3 + kind
                self.waits[task] = len(needs)
                for need in needs:
                    self.successors[need.stage * 3 + need.kind].append((task - need.stage * 3 - need.kind, need.lag))

    def programs(self) -> Programs:
        """What was started, as the problem's tasks."""
        count, total = self.count, self.problem.total
        return {
            server: [
                (lane.slot[task // 3 % count] * total + self.units[task // (3 * count)]) * 3 + task % 3
                for task in lane.tasks
            ]
            for server, lane in zip(self.servers, self.lanes, strict=True)
        }

    def run(self) -> None:
        """Move from event to event until everything has ended."""
        lanes, place, successors = self.lanes, self.place, self.successors
        width = len(successors)
        waiting = self.waits * len(self.units)
        events: dict[int, list[int]] = {0: [~task for task in range(len(waiting)) if not waiting[task]]}
        times = [0]
        patient = self.policy.patient
        while times:
            now = heappop(times)
            woken: list[int] = []
            # All ends and arrivals of an instant are known before a server chooses.
            for event in events.pop(now):
                if event < 0:
                    woken.append(self._arrive(~event))
                    continue
                woken.append(self._end(event))
                for distance, lag in successors[event % width]:
                    task = event + distance
                    waiting[task] -= 1
                    if waiting[task]:
                        continue
                    if lag:
                        _note(events, times, now + lag, ~task)
                    else:
                        woken.append(self._arrive(task))
            for number in woken:
                lane = lanes[number]
                if lane.busy:
                    continue
                task = self._choose(number, now)
                if task < 0:
                    continue
                lane.busy = True
                lane.tasks.append(task)
                end = now + lane.cost[task % width]
                if patient:
                    for distance, lag in successors[task % width]:
                        if waiting[task + distance] == 1:
                            lanes[place[(task + distance) // 3]].announced.append(end + lag)
                _note(events, times, end, task)

    def _arrive(self, task: int) -> int:
        number = self.place[task // 3]
        lane = self.lanes[number]
        heappush(lane.ready[task % 3][lane.slot[task // 3 % self.count]], task)
        return number

    def _end(self, task: int) -> int:
        number = self.place[task // 3]
        lane = self.lanes[number]
        lane.busy = False
        if task % 3 == 1:
            lane.open[lane.slot[task // 3 % self.count]] += 1
        amount = self.release[task % len(self.release)]
        if amount:
            rank = task // 3 // self.count
            lane.room += amount
            lane.held[rank] -= amount
            if not lane.held[rank] and not lane.rest[rank]:
                lane.flight.remove(rank)
        return number

    def _choose(self, number: int, now: int) -> int:
        """Take what the server starts; -1 if it waits."""
        lane, policy = self.lanes[number], self.policy
        forwards, gradients, weights = lane.ready
        forward = self._forward(number, forwards)
        if forward and lane.room - self.acquire[forward[0] % len(self.acquire)] >= self.fill[number]:
            return self._start_forward(lane, forward)
        blocked = not forward and any(forwards)
        hurries = (policy.frees and blocked) or (policy.steady and lane.left)
        if hurries and (weight := _lowest(weights)):
            return heappop(weight)
        if gradient := _first(gradients, policy.late):
            taken = self.acquire[gradient[0] % len(self.acquire)]
            if taken > lane.room and (weight := _lowest(weights)):
                return heappop(weight)
            lane.room -= taken
            lane.held[gradient[0] // 3 // self.count] += taken
            return heappop(gradient)
        if forward:
            return self._start_forward(lane, forward)
        if weight := _lowest(weights):
            if policy.patient and not blocked:
                coming = lane.announced = [arrival for arrival in lane.announced if arrival > now]
                if coming and min(coming) < now + lane.cost[weight[0] % len(lane.cost)]:
                    return -1
            return heappop(weight)
        return -1

    def _forward(self, number: int, forwards: Sequence[list[int]]) -> list[int] | None:
        """The heap whose first F the server prefers among those that are safe."""
        lane = self.lanes[number]
        heaps = [heap for slot, heap in enumerate(forwards) if heap and lane.open[slot]][::-1]
        if not self.policy.deep:
            heaps.sort(key=lambda heap: heap[0])
        return next((heap for heap in heaps if self._is_safe(number, lane, heap[0])), None)

    def _is_safe(self, number: int, lane: _Lane, task: int) -> bool:
        """Whether every micro-batch of a lower rank can still run its F here once this one has started."""
        rank, amount = task // 3 // self.count, self.acquire[task % len(self.acquire)]
        if amount > lane.room - self.reserve[number]:
            return False
        limit = self.limits[number]
        taken = amount
        for other in reversed(lane.flight):
            if other < rank and lane.held[other] + lane.rest[other] + taken > limit:
                return False
            taken += lane.held[other]
        while lane.unstarted < len(lane.order) and lane.order[lane.unstarted] in lane.held:
            lane.unstarted += 1
        most = 0
        for place in range(lane.unstarted, len(lane.order)):
            other = lane.order[place]
            if other >= rank:
                break
            # Those of higher rank hold no more than for the one before: only one that needs more room can lack it.
            if other not in lane.held and lane.rest[other] > most:
                most = lane.rest[other]
                above = amount + sum(lane.held[higher] for higher in lane.flight if higher > other)
                if above + most > limit:
                    return False
        return True

    def _start_forward(self, lane: _Lane, heap: list[int]) -> int:
        task = heappop(heap)
        rank, amount = task // 3 // self.count, self.acquire[task % len(self.acquire)]
        if rank not in lane.held:
            lane.held[rank] = 0
            insort(lane.flight, rank)
        elif not lane.held[rank] and not lane.rest[rank]:
            insort(lane.flight, rank)
        lane.open[lane.slot[task // 3 % self.count]] -= 1
        lane.room -= amount
        lane.held[rank] += amount
        lane.rest[rank] -= amount
        lane.left -= 1
        return task


def open_at_once(problem: Problem, percent: int, chunk: int) -> int:
    """How many micro-batches of a chunk a server may hold between F and I, in percent of what its round trip needs.

    It is what that needs at the pace of the busiest server; with 0 there is no limit.
    """
    if not percent:
        return problem.total
    pace = max(
        sum(sum(problem.cost[each]) for each in chunks)
        for placement in {*problem.job.placements}
        for chunks in placement
    )
    return max(1, -(-percent * round_trip(problem, chunk) // (100 * max(pace, 1))))


def _note(events: dict[int, list[int]], times: list[int], time: int, event: int) -> None:
    if time in events:
        events[time].append(event)
    else:
        events[time] = [event]
        heappush(times, time)


def _first(heaps: Sequence[list[int]], forward: bool) -> list[int] | None:
    """The first heap that holds something, or the last."""
    return next((heap for heap in (heaps if forward else reversed(heaps)) if heap), None)


def _lowest(heaps: Sequence[list[int]]) -> list[int] | None:
    """The heap with the task of the lowest rank."""
    return min((heap for heap in heaps if heap), default=None)
