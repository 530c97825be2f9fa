"""Schedules for servers of several chunks, made in one go: the best orders of F and I, with W where they fit."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

import msgspec

from recycle.job import Server
from recycle.planner.greedy.chunk_scheduler import POLICIES, ChunkPolicy, open_at_once, schedule_chunks
from recycle.planner.greedy.refit import refit
from recycle.planner.model.bounds import lower_bound
from recycle.planner.model.evaluate import value
from recycle.planner.model.problem import Problem, Programs, make_problem

EVEN_POLICIES = (
    ChunkPolicy(100, late=True, frees=True, steady=True),
    ChunkPolicy(100, late=True, frees=True),
    ChunkPolicy(0),
)
"""For the problem of even costs. The first makes the order of V-shaped zero-bubble schedules (Qi et al., 2024)."""

NO_TARGET = 1 << 60


def chunk_schedules(problem: Problem) -> Iterator[Programs]:
    """Legal programs, the likely best first.

    The order of F and I is taken from the problem itself, and from that of even costs without latency, where all
    servers of a V keep step.
    """
    target = lower_bound(problem).value
    split = problem.kinds == 3
    v_shaped = is_v_shaped(problem)
    if not v_shaped:
        # Those that take I of the last chunk first are often the best there, above all the one that keeps step; and
        # where round trips need nearly all memory, those that keep it for all chunks.
        likely = sorted(POLICIES, key=lambda policy: (policy.late, not policy.steady, policy.fill))
        if _is_tight(problem):
            likely.sort(key=lambda policy: policy.ahead or NO_TARGET)
        yield from _by_policies(problem, likely, target)
    even = _evened(problem)
    orders: list[Programs] = []
    for policy in EVEN_POLICIES:
        order = schedule_chunks(even, policy)
        orders.append(order)
        if split:
            yield refit(problem, order, target)
            yield refit(problem, order, NO_TARGET)
        yield order
        if v_shaped and policy == EVEN_POLICIES[0]:
            # With latency and much memory it does better on the problem itself.
            yield from _by_policies(problem, (policy,), target)
    if v_shaped:
        yield from _in_rounds(problem, target, orders)
        yield from _by_policies(problem, POLICIES, target)
    for order in orders if split else ():
        yield from _targeted(problem, order, target)


def _in_rounds(problem: Problem, target: int, orders: list[Programs]) -> Iterator[Programs]:
    """Schedules in rounds, with W as they come and placed anew; what they are is added to the orders."""
    plain = _plain(problem)
    for each in (problem,) if plain == problem else (problem, plain):
        for order in round_schedules(each):
            yield order
            yield refit(problem, order, target)
            orders.append(order)


def _by_policies(problem: Problem, policies: Iterable[ChunkPolicy], target: int) -> Iterator[Programs]:
    for policy in policies:
        order = schedule_chunks(problem, policy)
        yield order
        if problem.kinds == 3:
            yield refit(problem, order, target)


def _targeted(problem: Problem, order: Programs, bound: int) -> Iterator[Programs]:
    """One order with W placed for targets between the bound and what is reached without a target, by bisection.

    A server that aims at more than the others reach puts W where they delay F and I, and one without a target waits for
    too long: the least target that is met lies between.
    """
    least, met = bound, value(problem, refit(problem, order, NO_TARGET))
    while least < met:
        target = (least + met) // 2
        programs = refit(problem, order, target)
        yield programs
        if value(problem, programs) <= target:
            met = target
        else:
            least = target + 1


def _is_tight(problem: Problem) -> bool:
    """Whether what is between F and I at the busiest server's pace takes three quarters of some server's memory."""
    job = problem.job
    if not job.even:
        return False
    held = [problem.acquire[chunk][0] * open_at_once(problem, 100, chunk) for chunk in range(len(job.stages))]
    return any(4 * sum(held[chunk] for chunk in each) > 3 * job.limit(place) for place, each in enumerate(job.chunks))


def _evened(problem: Problem) -> Problem:
    """The same problem, with a time unit for each F, I and W, and without latency."""
    job = problem.job
    stages = [msgspec.structs.replace(each, forward=1, input_gradient=1, weight_gradient=1) for each in job.stages]
    even = msgspec.structs.replace(job, stages=tuple(stages), latency=(0,) * len(job.latency))
    return make_problem(even, problem.dead, problem.mode)


def _plain(problem: Problem) -> Problem:
    """The same problem, with the costs of the first chunk for all."""
    job = problem.job
    first = job.stages[0]
    costs = {field: getattr(first, field) for field in ("forward", "input_gradient", "weight_gradient")}
    stages = tuple(msgspec.structs.replace(stage, **costs) for stage in job.stages)
    return make_problem(msgspec.structs.replace(job, stages=stages), problem.dead, problem.mode)


def is_v_shaped(problem: Problem) -> bool:
    """Whether this is one pipeline, whole and with a split backward, whose servers hold two chunks each in a V."""
    job = problem.job
    if job.pipelines > 1 or not job.even or problem.dead or problem.kinds < 3:
        return False
    last = len(job.stages) - 1
    return job.depth > 1 and job.chunks == tuple((place, last - place) for place in range(job.depth))


def round_schedules(problem: Problem) -> Iterator[Programs]:
    """V-shaped schedules in rounds, as far as memory allows them: one I and one F in turn, and W where a server waits.

    The rule is that of the V schedules of Qi et al., Zero Bubble Pipeline Parallelism (2024), and of the greedy
    scheduler that they published with them. A micro-batch passes every server four times: its F go down the V and up
    again, then its I down and up. A server's round is one I and one F, each of the later pass if what that needs is
    there. While a server waits it executes W; and it also executes one that makes it late, as long as it has not
    waited more than another: what is lost on one server is lost on all.

    All servers take their turns together, whatever tasks cost. So the order of F and I follows from what is there, not
    from when; costs decide how many F go ahead at the beginning, and where W are.

    There are four: W that make a server late may go before F, before I on their way down, before both or neither. Each
    is made again, as long as that helps, with what its servers have waited in all known from the beginning.

    Args:
        problem: one V-shaped pipeline (``is_v_shaped``).
    """
    assert is_v_shaped(problem), "rounds are for one V-shaped pipeline"
    for before_forward, before_gradient in product((True, False), repeat=2):
        allowed, least = [0] * problem.job.depth, -1
        while True:
            rounds = _Rounds(problem, (before_forward, before_forward, before_gradient, True), allowed)
            try:
                yield rounds.run()
            except _StuckError:
                break
            if 0 <= least <= rounds.most_waited:
                break
            allowed, least = rounds.waited, rounds.most_waited


class _StuckError(Exception):
    """A server needs memory or a result for its turn that is not to be had."""


class _Rounds:
    """One schedule.

    Args:
        problem: what is planned.
        hurries: per pass, whether a W may make a server late for it.
        allowed: per server, what it will have waited at the end, as far as that is known.

    Attributes:
        waited: per server, how long it has waited since its first F.
        most_waited: the longest of these times.
    """

    def __init__(self, problem: Problem, hurries: Sequence[bool], allowed: Sequence[int]) -> None:
        job = problem.job
        self.problem = problem
        self.hurries = hurries
        self.depth = job.depth
        self.servers = range(job.depth)
        self.behind = [max(allowed) - each for each in allowed]
        self.waited = [0] * job.depth
        self.most_waited = 0
        self.clock = [0] * job.depth
        self.room = [job.limit(server) for server in self.servers]
        # Per pass and server, when each of its micro-batches so far has ended.
        self.ends: list[list[list[int]]] = [[[] for _ in self.servers] for _ in range(4)]
        self.weights: list[deque[int]] = [deque() for _ in self.servers]
        self.tasks: list[list[int]] = [[] for _ in self.servers]

    def run(self) -> Programs:
        """Make the schedule.

        Raises:
            _StuckError: memory does not allow it.
        """
        self.fill()
        self.level()
        for _ in range(2 * self.problem.job.micro_batches):
            self.gradients()
            self.forwards()
        for server in self.servers:
            while self.weights[server]:
                self.weight(server)
        return {Server(0, server): tasks for server, tasks in enumerate(self.tasks)}

    def fill(self) -> None:
        """F down the V to the turn and up again, and more F down while a server waits for that."""
        for server in self.servers:
            self.execute(0, server)
        for server in reversed(self.servers):
            if server < self.depth - 1:
                pair = sum(self.problem.acquire[self.chunk(turn, server)][0] for turn in (0, 1))
                time = self.arrival(1, server) - self.problem.cost[server][0]
                while self.clock[server] <= time and self.room[server] >= pair * (server + 1) and self.left(0, server):
                    for each in range(server + 1):
                        self.execute(0, each)
            self.execute(1, server)

    def level(self) -> None:
        """F of both passes in turn on the inner servers, until each has as many as the one before it."""
        turn = 0
        for server in self.servers[1:]:
            while self.forward(server) < self.forward(server - 1) or (
                self.done(1, server) <= self.done(1, server - 1) and self.left(1, server - 1)
            ):
                for each in reversed(self.servers[server:]):
                    if self.left(turn, each):
                        self.execute(turn, each)
                turn = 1 - turn

    def gradients(self) -> None:
        """An I on every server: on its way up if it is there, or if no other is left."""
        up = [
            self.done(3, server) < self.done(2, server) and (self.arrival(3, server) >= 0 or not self.left(2, server))
            for server in self.servers
        ]
        for turn in (3, 2):
            for server in reversed(self.servers) if turn == 3 else self.servers:
                if up[server] == (turn == 3):
                    self.take_turn(turn, server)

    def forwards(self) -> None:
        """An F on every server that has one left: on its way up if it is there."""
        for server in self.servers:
            if not self.left(1, server):
                continue
            if self.done(1, server) < self.done(0, server) and self.arrival(1, server) >= 0:
                self.take_turn(1, server)
            elif self.left(0, server) and self.arrival(0, server) >= 0:
                self.take_turn(0, server)

    def take_turn(self, turn: int, server: int) -> None:
        """Execute a task, and before it the W whose memory it needs and those for which there is time."""
        while self.problem.acquire[self.chunk(turn, server)][turn // 2] > self.room[server]:
            self.weight(server)
        arrival, weights = self.arrival(turn, server), self.weights[server]
        while weights and arrival >= self.clock[server] + self.cost(server, weights[0]):
            self.weight(server)
        spare = max(self.most_waited, self.behind[server]) - self.waited[server]
        if weights and self.hurries[turn] and arrival - self.clock[server] > spare:
            self.weight(server)
        self.execute(turn, server)

    def execute(self, turn: int, server: int) -> None:
        """The next task of a pass, as soon as the server is free and what it needs is there."""
        chunk, kind, number = self.chunk(turn, server), turn // 2, self.done(turn, server)
        arrival = self.arrival(turn, server)
        self.room[server] -= self.problem.acquire[chunk][kind]
        if arrival < 0 or self.room[server] < 0 or (turn and number >= self.done(turn - 1, server)):
            raise _StuckError
        if self.tasks[server]:
            self.waited[server] += max(0, arrival - self.clock[server])
            self.most_waited = max(self.most_waited, self.waited[server])
        self.clock[server] = max(self.clock[server], arrival) + self.problem.cost[chunk][kind]
        self.ends[turn][server].append(self.clock[server])
        self.room[server] += self.problem.release[chunk][kind]
        slot = int(chunk != server)
        task = (slot * self.problem.total + number) * 3 + kind
        self.tasks[server].append(task)
        if kind == 1:
            self.weights[server].append(task + 1)

    def weight(self, server: int) -> None:
        if not self.weights[server]:
            raise _StuckError
        task = self.weights[server].popleft()
        chunk = self.chunk_of(server, task)
        self.clock[server] += self.problem.cost[chunk][2]
        self.room[server] += self.problem.release[chunk][2]
        self.tasks[server].append(task)

    def cost(self, server: int, task: int) -> int:
        return self.problem.cost[self.chunk_of(server, task)][2]

    def chunk_of(self, server: int, task: int) -> int:
        return self.problem.job.chunks[server][task // 3 // self.problem.total]

    def chunk(self, turn: int, server: int) -> int:
        """That a server's task of a pass belongs to."""
        return server if turn in (0, 3) else 2 * self.depth - 1 - server

    def done(self, turn: int, server: int) -> int:
        return len(self.ends[turn][server])

    def left(self, turn: int, server: int) -> int:
        return self.problem.job.micro_batches - self.done(turn, server)

    def forward(self, server: int) -> int:
        return self.done(0, server) + self.done(1, server)

    def arrival(self, turn: int, server: int) -> int:
        """When what a server's next task of a pass needs from another one is there; -1 if that is not known yet."""
        before = server - 1 if turn % 2 == 0 else server + 1
        if not 0 <= before < self.depth:
            return 0
        ends, number = self.ends[turn][before], self.done(turn, server)
        if number >= len(ends):
            return -1
        return ends[number] + self.problem.job.lag(self.chunk(turn, before), self.chunk(turn, server))
