"""Anytime improvement: from the best greedy schedule towards the bound, for as long as one likes."""

import time
from collections.abc import Callable, Iterator, Sequence
from random import Random

import msgspec

from recycle.planner.anneal.walk import Walk
from recycle.planner.greedy.batches import schedule_large
from recycle.planner.greedy.list_scheduler import POLICIES, list_schedule
from recycle.planner.greedy.published import zero_bubble_orders
from recycle.planner.model.bounds import lower_bound
from recycle.planner.model.evaluate import value
from recycle.planner.model.problem import Problem, Programs
from recycle.planner.model.routing import balanced_routes
from recycle.planner.model.stopping import Progress, StoppingCriterion

BATCH = 64
"""Changes between two looks at the stops."""

FIRST_ROUND = 8192
"""Changes in the first annealing run; each one in vain makes the next a quarter longer."""

HOTTEST, COLDEST = 1.0, 0.1
"""Temperatures at the ends of a run, in mean costs of a task."""


class SearchResult(msgspec.Struct, frozen=True):
    """The result of a search.

    Attributes:
        programs: the best schedule.
        progress: its value and bound, and what it took.
    """

    programs: Programs
    progress: Progress


def improve(
    problem: Problem,
    stops: Sequence[StoppingCriterion],
    seed: int = 0,
    start: Programs | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> SearchResult:
    """Search for a better schedule until a stop is reached, the bound is met, or Ctrl-C is pressed.

    Simulated annealing towards one time unit less than the best value, over and over, from the best schedule and from
    the greedy ones. The same problem, seed and number of moves give the same result.

    Args:
        problem: what to plan.
        stops: the search ends when the first of them is reached; with none it ends at the bound only.
        seed: of the random choices.
        start: a legal schedule to begin with, beside the greedy ones.
        watch: called with (value, bound) at the beginning and at every improvement.
    """
    search = _Search(problem, stops, seed, watch)
    try:
        search.run(start)
    except KeyboardInterrupt:
        if search.best is None:
            raise
    assert search.best is not None
    return SearchResult(search.best, search.progress())


class _Search:
    def __init__(
        self, problem: Problem, stops: Sequence[StoppingCriterion], seed: int, watch: Callable[[int, int], None] | None
    ) -> None:
        self.problem = problem
        self.stops = stops
        self.random = Random(seed)
        self.watch = watch
        self.bound = lower_bound(problem).value
        self.began = time.monotonic()
        self.moves = 0
        self.best: Programs | None = None
        self.value = 0

    def progress(self) -> Progress:
        return Progress(self.value, self.bound, self.moves, time.monotonic() - self.began)

    def ended(self) -> bool:
        progress = self.progress()
        return self.value <= self.bound or any(stop.reached(progress) for stop in self.stops)

    def offer(self, programs: Programs) -> int:
        found = value(self.problem, programs)
        if self.best is None or found < self.value:
            self.best, self.value = programs, found
            if self.watch is not None:
                self.watch(found, self.bound)
        return found

    def run(self, start: Programs | None) -> None:
        starts: list[tuple[int, int, Programs]] = []
        for programs in self.constructed(start):
            starts.append((self.offer(programs), len(starts), programs))
            if self.ended():
                return
        # The index breaks ties, so that programs are never compared.
        starts = sorted(starts)[:3]
        unit = max(1.0, sum(map(sum, self.problem.cost)) / (3 * self.problem.job.depth))
        length = FIRST_ROUND
        turn = 0
        while not self.ended():
            assert self.best is not None
            begin = self.best if turn % 2 == 0 else starts[turn // 2 % len(starts)][2]
            if self.anneal(begin, length, unit):
                turn = 0
            else:
                turn += 1
                length += length // 4

    def constructed(self, start: Programs | None) -> Iterator[Programs]:
        """Where to begin, from the cheapest on."""
        if start is not None:
            yield start
        routes = balanced_routes(self.problem)
        for policy in POLICIES:
            yield list_schedule(self.problem, policy, routes)
        if not self.problem.dead:
            yield from zero_bubble_orders(self.problem)
        yield schedule_large(self.problem)

    def anneal(self, begin: Programs, length: int, unit: float) -> bool:
        """Walk towards a better value; True if one was found."""
        walk = Walk(self.problem, begin, self.value - 1, self.random)
        for done in range(0, length, BATCH):
            temperature = unit * HOTTEST * (COLDEST / HOTTEST) ** (done / length)
            for _ in range(BATCH):
                if not walk.energy:
                    self.offer(walk.programs())
                    return True
                walk.step(temperature)
                self.moves += 1
            walk.tidy()
            if self.ended():
                break
        return False
