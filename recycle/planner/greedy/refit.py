"""Refitting: a schedule keeps its order of F and I on every server, and its W go where they delay the least.

A good order of F and I is often found in a simpler problem, of even costs and without latency; what changes with the
costs is where W fits. So each server takes its F and I in order, each as soon as it can. It runs a W when an F needs
its memory, and while what comes next is not there yet: a W that fits into the wait, or any W if the server has waited
so much that it would otherwise not end within a target.

An order of F and I that keeps to memory with its W in any places also does here: when all W that wait are done, memory
holds no more than it did there.
"""

from collections import deque
from heapq import heappop, heappush

from recycle.holding import least_updates, placed
from recycle.job import Server
from recycle.plan.timing import Deadlock
from recycle.planner.model.problem import Problem, Programs


def refit(problem: Problem, programs: Programs, target: int) -> Programs:
    """Place the W of a schedule anew.

    Args:
        problem: what is planned; its backward is split.
        programs: legal programs of it, or of a problem with other costs and latencies.
        target: the time from its first task to the end of its updates that a server is to keep, if it can.

    Returns:
        Legal programs.

    Raises:
        Deadlock: the servers wait for each other in this order.
    """
    return _Refit(problem, programs, target).run()


class _Lane:
    """One server during the simulation."""

    __slots__ = ("cost", "done", "free", "order", "place", "room", "slack", "waiting")

    def __init__(self, order: list[int], room: int, slack: int, cost: list[int]) -> None:
        self.cost = cost
        self.order = order
        self.place = 0
        self.free = 0
        self.room = room
        self.slack = slack
        self.waiting: deque[int] = deque()
        self.done: list[int] = []


class _Refit:
    """One simulation. Tasks are numbered ``(unit * C + chunk) * 3 + kind`` for C chunks, and lanes as servers are.

    What a task needs of its own chunk is before it on its lane. So it waits for its neighbour's result at most, and one
    lane at most for it.
    """

    def __init__(self, problem: Problem, programs: Programs, target: int) -> None:
        job = problem.job
        assert problem.kinds == 3, "a fused backward has no W to place"
        self.problem = problem
        self.width = width = 3 * len(job.stages)
        self.servers = sorted(programs)
        self.cost = [cost for stage in problem.cost for cost in stage]
        self.lanes = [self._lane(server, programs[server], target) for server in self.servers]
        self.acquire = [amount for stage in problem.acquire for amount in stage]
        released = [amount for stage in problem.release for amount in stage]
        # Nothing else happens on a server meanwhile: what is released at the end is there for what comes next.
        self.change = [after - before for after, before in zip(released, self.acquire, strict=True)]
        # The task that waits for each, by its distance, and the lag; and when what a task waits for is there, -1 while
        # that is not known.
        self.follower = [(0, 0)] * width
        ready = [0] * width
        for chunk, kinds in enumerate(problem.needs):
            for kind, needs in enumerate(kinds):
                for need in needs:
                    if need.stage != chunk:
                        task, before = chunk * 3 + kind, need.stage * 3 + need.kind
                        self.follower[before] = task - before, need.lag
                        ready[task] = -1
        self.ready = ready * problem.total
        self.watchers: dict[int, int] = {}
        self.agenda = {0: list(range(len(self.lanes)))}
        self.times = [0]

    def _lane(self, server: Server, program: list[int], target: int) -> _Lane:
        job = self.problem.job
        here = placed(job, server)
        # By slot and kind: what turns a task's micro-batch into its number.
        place = [chunk * 3 + kind for chunk in here.chunks for kind in range(3)]
        total, width = self.problem.total, self.width
        tasks = [task // 3 % total * width + place[task // 3 // total * 3 + task % 3] for task in program]
        updates = least_updates(job, server) if self.problem.staggered else 0
        cost = list(map(here.time, self.cost))
        slack = target - updates - sum([cost[task % width] for task in tasks])
        return _Lane([task for task in tasks if task % 3 < 2], here.limit, slack, cost)

    def run(self) -> Programs:
        lanes, agenda, times, ready = self.lanes, self.agenda, self.times, self.ready
        while times:
            now = heappop(times)
            idle: set[int] = set()
            # What can start now starts before anybody runs a W because nothing is there. More may join meanwhile.
            for number in agenda[now]:
                lane = lanes[number]
                if lane.free > now:
                    continue
                task = lane.order[lane.place] if lane.place < len(lane.order) else -1
                if task >= 0 and 0 <= ready[task] <= now:
                    self._go_on(number, task, now)
                    continue
                idle.add(number)
                if task >= 0 and ready[task] < 0:
                    self.watchers[task] = number
            del agenda[now]
            for number in sorted(idle):
                if lanes[number].free <= now:
                    self._fill(number, now)
        stuck = [(number, lane.place) for number, lane in enumerate(lanes) if lane.place < len(lane.order)]
        if stuck:
            raise Deadlock(stuck)
        return {server: self._programs(server, lane) for server, lane in zip(self.servers, lanes, strict=True)}

    def _programs(self, server: Server, lane: _Lane) -> list[int]:
        assert not lane.waiting
        total, width = self.problem.total, self.width
        first = {
            chunk * 3 + kind: slot * total * 3 + kind
            for slot, chunk in enumerate(placed(self.problem.job, server).chunks)
            for kind in range(3)
        }
        return [first[task % width] + task // width * 3 for task in lane.done]

    def _wake(self, number: int, time: int) -> None:
        """Let a server look for something to start at a time."""
        if time in self.agenda:
            self.agenda[time].append(number)
        else:
            self.agenda[time] = [number]
            heappush(self.times, time)

    def _go_on(self, number: int, task: int, now: int) -> None:
        """Start the next F or I of the order, or the W whose memory it needs."""
        lane = self.lanes[number]
        if self.acquire[task % self.width] > lane.room:
            self._start(number, lane.waiting.popleft(), now)
            return
        lane.place += 1
        self._start(number, task, now)
        if task % 3 == 1:
            lane.waiting.append(task + 1)

    def _fill(self, number: int, now: int) -> None:
        """Run a W while the next F or I is not there, or wait for that."""
        lane = self.lanes[number]
        arrival = self.ready[lane.order[lane.place]] if lane.place < len(lane.order) else -1
        if lane.waiting:
            weight = lane.waiting[0]
            gap = arrival - now
            if arrival < 0 or gap >= lane.cost[weight % self.width] or gap > lane.slack:
                self._start(number, lane.waiting.popleft(), now)
                return
        if arrival >= 0:
            self._wake(number, arrival)

    def _start(self, number: int, task: int, now: int) -> None:
        lane, rule = self.lanes[number], task % self.width
        if lane.done:
            lane.slack -= now - lane.free
        lane.done.append(task)
        lane.free = end = now + lane.cost[rule]
        lane.room += self.change[rule]
        self._wake(number, end)
        distance, lag = self.follower[rule]
        if distance:
            self.ready[task + distance] = end + lag
            if task + distance in self.watchers:
                self._wake(self.watchers.pop(task + distance), now)
