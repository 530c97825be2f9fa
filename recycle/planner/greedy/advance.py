"""Advancing: every task of a schedule as early as memory and a gap on its server allow, and none later.

A schedule that is as short as can be may still put off what it could do at once: W until memory is full, F until the
next I is done. That does it no harm, but leaves nothing in hand: a server that gets a guest beside all that is its own
makes up for the delay by putting off W, and for that it needs memory.
"""

from bisect import bisect_right, insort

from recycle.planner.model.evaluate import timing
from recycle.planner.model.problem import Problem, Programs


def advance(problem: Problem, programs: Programs) -> Programs:
    """Start what can start earlier; no server begins earlier, so that no window becomes longer.

    Tasks are taken by their starts. When it is a task's turn, all that started before it has been placed, no later than
    it was: so the task's own start is free, and memory does for it from then on. It gets the first gap where it does.

    Args:
        problem: one pipeline without failures, of one chunk per server.
        programs: legal programs of it.

    Returns:
        Legal programs of the same value or less.
    """
    assert problem.job.standard, "one chunk per server"
    assert problem.job.pipelines == 1, "one pipeline"
    assert not problem.dead, "no failures"
    servers = sorted(programs)
    tasks = [(server.stage, task) for server in servers for task in programs[server]]
    times = timing(problem, programs)
    lanes = [_Lane(problem.job.limit(stage)) for stage in range(problem.job.depth)]
    ends: dict[tuple[int, int], int] = {}
    for node in sorted(times.sequence, key=times.start.__getitem__):
        stage, task = tasks[node]
        kind, lane = task % 3, lanes[stage]
        if not lane.tasks:
            lane.first = times.start[node]
        ready = max(
            (ends[need.stage, task - kind + need.kind] + need.lag for need in problem.needs[stage][kind]),
            default=lane.first,
        )
        cost = problem.cost[stage][kind]
        start = lane.place(task, ready, cost, problem.acquire[stage][kind], problem.release[stage][kind])
        assert start <= times.start[node], "nothing starts later"
        ends[stage, task] = start + cost
    return {server: lanes[server.stage].tasks for server in servers}


class _Lane:
    """A server's tasks so far, and its memory.

    Args:
        limit: of its memory.

    Attributes:
        first: when its first task starts.
        tasks: in the order of their starts.
    """

    def __init__(self, limit: int) -> None:
        self.first = 0
        self.tasks: list[int] = []
        self._room = limit
        self._starts: list[int] = []
        self._ends: list[int] = []
        # What is released at a time makes room for what starts then: it comes first. But a task that takes no time
        # releases nothing before it has started.
        self._changes: list[tuple[int, int, int]] = []

    def place(self, task: int, ready: int, cost: int, taken: int, freed: int) -> int:
        """Put a task where it can start first, and tell when that is.

        Args:
            task: its number.
            ready: when all that it needs is there.
            cost: how long it takes.
            taken: memory that it takes at its start.
            freed: memory that it frees at its end.
        """
        time = max(ready, self.first, self._memory(taken))
        place = bisect_right(self._ends, time)
        while place < len(self.tasks) and self._starts[place] < time + cost:
            time = max(time, self._ends[place])
            place += 1
        self.tasks.insert(place, task)
        self._starts.insert(place, time)
        self._ends.insert(place, time + cost)
        for moment, turn, amount in ((time, 1, taken), (time + cost, 0 if cost else 2, -freed)):
            if amount:
                insort(self._changes, (moment, turn, amount))
        self._room += freed - taken
        return time

    def _memory(self, taken: int) -> int:
        """From when on there is always room for so much."""
        room, since = self._room, -1
        for moment, _, change in reversed(self._changes) if taken else ():
            if room < taken:
                return since
            since = moment
            room += change
        return self.first
