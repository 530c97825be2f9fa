"""A schedule under small random changes, accepted by simulated annealing until no stage's window exceeds a target.

The state is an order of all tasks in which every task stands behind those it waits for; the lanes of the servers are
its subsequences. One pass through the order times everything. Changes are made where it hurts, on a longest path to
the end of a window that is too long, as in job-shop search (van Laarhoven, Aarts and Lenstra, Operations Research 40,
1992). That also makes them safe: neighbours on a lane without idle time between them can change places without a cycle.
"""

import math
from random import Random
from typing import NamedTuple

from recycle.job import Server
from recycle.planner.model.objective import timing
from recycle.planner.model.problem import Problem, Programs
from recycle.planner.model.routing import movable

LONG_AGO = -(1 << 60)

FARTHEST = 12
"""How many places on its lane a W may go forward or back in one change."""

DELAY, DEFER, REROUTE = 0.05, 0.2, 0.3
"""How often each kind of change is tried; the rest are swaps. Measured: fewer re-routings find fewer optima."""


class Reversal(NamedTuple):
    """What undoes a change.

    Attributes:
        first: the first index of the order that changed.
        segment: what stood in the order from there on.
        moved: the tasks that left their places, in that order, each with the task it followed and its server.
        release: the stages' earliest starts.
    """

    first: int
    segment: list[int]
    moved: list[tuple[int, int, int]]
    release: list[int]


class Walk:
    """One annealing run.

    Tasks are numbered ``(unit * C + chunk) * 3 + kind`` for C chunks: stages, where servers hold one each. Lanes are
    doubly linked rings; their heads, one per server, are numbered behind the tasks and end when the server's stage, its
    place in a pipeline, is released.

    Args:
        problem: what is planned: one pipeline, or one chunk per server.
        programs: where to begin.
        target: the value to reach: ``energy`` is 0 once the order's value is not above it.
        random: source of all choices.

    Attributes:
        energy: by how much the servers' last tasks end too late, summed, in the job's time units.
    """

    def __init__(self, problem: Problem, programs: Programs, target: int, random: Random) -> None:
        self._problem = problem
        self._random = random.random
        self._target = target
        job, depth, total = problem.job, problem.job.depth, problem.total
        assert job.standard or job.pipelines == 1, "windows of several chunks are those of servers"
        self._depth = depth
        self._chunks = len(job.stages)
        self._count = count = total * self._chunks * 3
        self._servers = [pipeline * depth + stage for stage, live in enumerate(problem.live) for pipeline in live]
        heads = job.pipelines * depth
        none = count + heads
        self._cost = [cost for stage in problem.cost for cost in stage] * total + [0] * (heads + 1)
        self._lag, self._need = _remote_needs(problem, none)
        # The memory rule as tables: whether a change fits is asked at every step, of a part of a lane or of one lane.
        self._acquired = [amount for stage in problem.acquire for amount in stage] * total
        self._released = [amount for stage in problem.release for amount in stage] * total
        self._limit = [job.limit(stage) for stage in range(depth)]
        updates = [sum(job.stages[chunk].update for chunk in chunks) for chunks in job.chunks]
        self._update = updates if problem.staggered else [0] * depth
        hosts = [movable(problem, stage) for stage in range(depth)]
        self._movable = [list(units) for units in hosts]
        self._hosts: list[dict[int, list[int]]] = []
        for stage, units in enumerate(hosts):
            servers = {each: [pipeline * depth + stage for pipeline in each] for each in set(units.values())}
            self._hosts.append({unit: servers[each] for unit, each in units.items()})
        self._longest = max(self._cost)
        self._end = [LONG_AGO] * (none + 1)
        self._arrival = [LONG_AGO] * (none + 1)
        self._load(programs, heads)
        self._late: list[int] = []
        self._begin = self._release
        self._sweep(0)
        self.energy = self._assess()
        self.tidy()

    def _load(self, programs: Programs, heads: int) -> None:
        depth, count, chunks = self._depth, self._count, self._problem.job.chunks
        self._server = [-1] * (count + heads)
        self._before = [*range(count + heads)]
        self._after = [*range(count + heads)]
        tasks: list[int] = []
        for server in sorted(programs):
            number = server.pipeline * depth + server.stage
            self._server[count + number] = number
            for code in programs[server]:
                slot, unit = divmod(code // 3, self._problem.total)
                task = (unit * self._chunks + chunks[server.stage][slot]) * 3 + code % 3
                self._server[task] = number
                self._place(task, self._before[count + number])
                tasks.append(task)
        times = timing(self._problem, programs)
        self._release = [0] * depth
        if self._problem.staggered:
            for task, time in sorted(zip(tasks, times.start, strict=True), key=lambda each: each[1], reverse=True):
                self._release[self._server[task] % depth] = time
        self._order = [tasks[node] for node in times.sequence]

    def programs(self) -> Programs:
        """The current order of every live server."""
        problem = self._problem
        programs: dict[Server, list[int]] = {server: [] for server in problem.servers}
        slots = {chunk: slot for chunks in problem.job.chunks for slot, chunk in enumerate(chunks)}
        for task in self._order:
            unit, chunk = divmod(task // 3, self._chunks)
            server = Server(*divmod(self._server[task], self._depth))
            programs[server].append((slots[chunk] * problem.total + unit) * 3 + task % 3)
        return programs

    def _place(self, task: int, behind: int) -> None:
        following = self._after[behind]
        self._after[behind] = task
        self._before[task] = behind
        self._after[task] = following
        self._before[following] = task

    def _move(self, task: int, behind: int) -> None:
        before, after = self._before, self._after
        previous, following = before[task], after[task]
        after[previous] = following
        before[following] = previous
        self._place(task, behind)

    def step(self, temperature: float) -> None:
        """Try one random change and keep it by Metropolis' rule, at a temperature in time units.

        To be called only while ``energy`` is above 0: there is nothing to mend otherwise.
        """
        server = self._late[int(self._random() * len(self._late))]
        neighbours, weights, root = self._longest_path(server)
        choice = self._random()
        change: Reversal | None
        if self._problem.staggered and (not neighbours or choice < DELAY):
            change = self._delay(server % self._depth, root)
        elif not neighbours:
            return
        elif weights and choice < DELAY + DEFER:
            change = self._defer(weights[int(self._random() * len(weights))])
        else:
            task = neighbours[int(self._random() * len(neighbours))]
            stage = self._server[task] % self._depth
            routable = self._movable[stage] and choice > 1 - REROUTE
            change = self._reroute(stage) if routable else self._swap(task)
        if change is None:
            return
        end, arrival, late, begin = self._end[:], self._arrival[:], self._late, self._begin
        self._sweep(change.first)
        energy = self._assess()
        if energy <= self.energy or self._random() < math.exp((self.energy - energy) / temperature):
            self.energy = energy
            return
        self._end, self._arrival, self._late, self._begin = end, arrival, late, begin
        self._order[change.first : change.first + len(change.segment)] = change.segment
        self._release = change.release
        self._undo(change.moved)

    def tidy(self) -> None:
        """Put the order into the order of time: changes then touch short parts of it."""
        self._order.sort(key=self._end.__getitem__)

    def _sweep(self, first: int) -> None:
        """Start every task from this index of the order on as soon as it can."""
        end, arrival, before, need = self._end, self._arrival, self._before, self._need
        cost, lag = self._cost, self._lag
        if first == 0:
            for server in self._servers:
                end[self._count + server] = self._release[server % self._depth]
        for task in self._order[first:]:
            time = end[before[task]]
            ready = arrival[need[task]]
            if ready > time:
                time = ready
            time += cost[task]
            end[task] = time
            arrival[task] = time + lag[task]

    def _assess(self) -> int:
        """By how much the target is exceeded; notes where, and when stages begin."""
        end, depth, count, release = self._end, self._depth, self._count, self._release
        if self._problem.staggered:
            begin = [-LONG_AGO] * depth
            for server in self._servers:
                first = self._after[count + server]
                time = end[first] - self._cost[first]
                if time < begin[server % depth]:
                    begin[server % depth] = time
        else:
            begin = release
        limit = [time + self._target - update for time, update in zip(begin, self._update, strict=True)]
        energy = 0
        late = []
        for server in self._servers:
            excess = end[self._before[count + server]] - limit[server % depth]
            if excess > 0:
                energy += excess
                late.append(server)
        self._begin, self._late = begin, late
        return energy

    def _longest_path(self, server: int) -> tuple[list[int], list[int], int]:
        """A path without idle time to the end of a server's last task.

        Returns:
            The tasks on it that start when their predecessor on the lane ends, the W tasks on it, and the stage
            whose release it begins at.
        """
        end, arrival, before, need, cost = self._end, self._arrival, self._before, self._need, self._cost
        count = self._count
        neighbours, weights = [], []
        task = before[count + server]
        while task < count:
            start = end[task] - cost[task]
            previous = before[task]
            follows = end[previous] == start
            if task % 3 == 2:
                weights.append(task)
            if follows and previous < count:
                neighbours.append(task)
            across = not follows or (arrival[need[task]] == start and self._random() < 0.5)
            task = need[task] if across else previous
        return neighbours, weights, (task - count) % self._depth

    def _level(self, task: int) -> int:
        """Memory in use on the task's server just before it starts."""
        before, acquired, released = self._before, self._acquired, self._released
        level = 0
        task = before[task]
        while task < self._count:
            level += acquired[task] - released[task]
            task = before[task]
        return level

    def _fits(self, server: int) -> bool:
        """True if the lane stays within its memory limit."""
        limit = self._limit[server % self._depth]
        level = 0
        task = self._after[self._count + server]
        while task < self._count:
            level += self._acquired[task]
            if level > limit:
                return False
            level -= self._released[task]
            task = self._after[task]
        return True

    def _delay(self, stage: int, root: int) -> Reversal:
        """Begin the stage whose window is too long later, or the stage that its longest path comes from earlier."""
        release = self._release
        self._release = release[:]
        shift = 1 + int(self._random() * self._longest)
        if root != stage and self._random() < 0.5:
            self._release[root] -= shift
        else:
            self._release[stage] = self._begin[stage] + shift
        return Reversal(0, [], [], release)

    def _swap(self, task: int) -> Reversal | None:
        """Execute a task before the one that it follows without idle time."""
        end, cost = self._end, self._cost
        previous = self._before[task]
        if previous // 3 == task // 3 or self._need[task] == previous:
            return None
        server = self._server[task]
        need = self._acquired[task]
        if need and self._released[previous]:
            rest = self._limit[server % self._depth] - self._level(previous) - need
            if rest < 0 or rest + self._released[task] < self._acquired[previous]:
                return None
        first = self._order.index(previous)
        segment = self._order[first : self._order.index(task, first) + 1]
        # What starts before the previous task ends does not depend on it, and all that this task needs is among that.
        time = end[previous]
        sooner = [other for other in segment[1:-1] if end[other] - cost[other] < time]
        later = [other for other in segment[1:-1] if end[other] - cost[other] >= time]
        if self._need[task] in later:
            return None
        self._order[first : first + len(segment)] = [*sooner, task, previous, *later]
        self._move(previous, task)
        return Reversal(first, segment, [(previous, self._before[task], server)], self._release)

    def _defer(self, task: int) -> Reversal | None:
        """Execute a W elsewhere on its lane: nothing waits for it, so it may go anywhere behind its I."""
        before, after = self._before, self._after
        server = self._server[task]
        places: list[int] = []
        place = before[task]
        while place < self._count and place != task - 1 and len(places) < FARTHEST:
            place = before[place]
            places.append(place)
        sooner = len(places)
        place = after[task]
        while place < self._count and len(places) < sooner + FARTHEST:
            places.append(place)
            place = after[place]
        if not places:
            return None
        choice = int(self._random() * len(places))
        place, previous = places[choice], before[task]
        order = self._order
        if choice < sooner:
            first = order.index(after[place])
            segment = order[first : order.index(task, first) + 1]
            order[first : first + len(segment)] = [task, *segment[:-1]]
            self._move(task, place)
        else:
            first = order.index(task)
            segment = order[first : order.index(place, first) + 1]
            self._move(task, place)
            if self._released[task] and not self._fits(server):
                self._move(task, previous)
                return None
            order[first : first + len(segment)] = [*segment[1:], task]
        return Reversal(first, segment, [(task, previous, server)], self._release)

    def _reroute(self, stage: int) -> Reversal | None:
        """Give a micro-batch to a peer of its server, at the same times, mostly in exchange for another one.

        Which of them take part is left to chance: the one on the longest path is no better choice.
        """
        units, hosts = self._movable[stage], self._hosts[stage]
        unit = units[int(self._random() * len(units))]
        source = self._server[(unit * self._depth + stage) * 3]
        sink = hosts[unit][int(self._random() * len(hosts[unit]))]
        if sink == source:
            return None
        exchanged = [
            other
            for other in units
            if self._server[(other * self._depth + stage) * 3] == sink and source in hosts[other]
        ]
        moved: list[tuple[int, int, int]] = []
        first = self._assign(unit, stage, sink, moved)
        if exchanged and self._random() < 0.8:
            other = exchanged[int(self._random() * len(exchanged))]
            first = min(first, self._assign(other, stage, source, moved))
        if not (self._fits(sink) and self._fits(source)):
            self._undo(moved)
            return None
        return Reversal(first, [], moved, self._release)

    def _assign(self, unit: int, stage: int, server: int, moved: list[tuple[int, int, int]]) -> int:
        """Put a micro-batch's tasks at a stage on a lane, by their places in the order; tells the place of its F."""
        order, servers = self._order, self._server
        task = (unit * self._depth + stage) * 3
        first = place = order.index(task)
        while True:
            index = place - 1
            while index >= 0 and servers[order[index]] != server:
                index -= 1
            moved.append((task, self._before[task], servers[task]))
            servers[task] = server
            self._move(task, order[index] if index >= 0 else self._count + server)
            task += 1
            if task % 3 == self._problem.kinds % 3:
                return first
            place = order.index(task, place)

    def _undo(self, moved: list[tuple[int, int, int]]) -> None:
        for task, behind, server in reversed(moved):
            self._server[task] = server
            self._move(task, behind)


def _remote_needs(problem: Problem, none: int) -> tuple[list[int], list[int]]:
    """Per task, the lag before its result reaches another stage, and the task of another stage whose result it needs.

    A task needs at most one such result, and each is needed by one task at most; the rest is before it on its lane.
    """
    width = 3 * len(problem.job.stages)
    lags = [0] * width
    sources: list[int | None] = [None] * width
    for stage, kinds in enumerate(problem.needs):
        for kind, needs in enumerate(kinds):
            for need in needs:
                if need.stage != stage:
                    source = need.stage * 3 + need.kind
                    assert sources[stage * 3 + kind] is None
                    assert source not in sources
                    sources[stage * 3 + kind] = source
                    lags[source] = need.lag
    needed = [none if source is None else unit * width + source for unit in range(problem.total) for source in sources]
    return lags * problem.total + [0] * (none + 1 - len(needed)), needed
