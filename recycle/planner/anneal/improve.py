"""Anytime improvement: from the best schedule made in one go towards the bound, for as long as one likes.

Where all pipelines are alike one of them is planned, and in large jobs the pattern that all of them follow
(``greedy.pattern``): a change of the whole would take longer than it is worth.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random

import msgspec

from recycle.errors import PlanningFailed
from recycle.plan.clock import Clock, run_clock
from recycle.plan.timing import Deadlock
from recycle.planner.anneal.walk import Walk
from recycle.planner.greedy.batches import schedule_large
from recycle.planner.greedy.chunked import chunk_schedules
from recycle.planner.greedy.list_scheduler import POLICIES, list_schedule
from recycle.planner.greedy.pattern import busiest, needed, sparing, spread
from recycle.planner.greedy.refit import refit
from recycle.planner.model.bounds import lower_bound
from recycle.planner.model.lowering import instructions
from recycle.planner.model.objective import is_whole, value
from recycle.planner.model.problem import Problem, Programs, one_pipeline
from recycle.planner.model.routing import balanced_routes
from recycle.planner.model.stopping import Progress, StoppingCriterion

BATCH = 64
"""Changes between two looks at the stops."""

FIRST_ROUND = 8192
"""Changes in the first annealing run; each one in vain makes the next a quarter longer."""

HOTTEST, COLDEST = 1.0, 0.1
"""Temperatures at the ends of a run, in mean costs of a task."""

LARGE = 30_000
"""Tasks beyond which a change of the whole schedule takes too long to gain anything within seconds."""

TASKS_A_MOVE = 200
"""A plan made from a pattern counts as a move for every so many of its tasks."""

FEWER = 1
"""How many micro-batches fewer than the busiest server's a pattern is tried with: more never helped, but for several
chunks per server where a shorter pattern's bound is above that of what follows it, and its servers idle enough."""

IDLE = 2
"""How many times as long as guests left over take a pattern's servers have to idle to let it be still shorter."""

LIKELY = 8
"""With several chunks per server, the schedules of a pattern that are tried however long that takes."""

FOLLOWING = 1.5
"""With several chunks per server, how many times as long for each task it takes to follow a pattern and to time that,
as to make and time a schedule of the pattern. It comes behind the search for one, and is left of what may be spent."""


CROWDING = 3
"""How many times as long it takes to follow a pattern that leaves guests over, and to place W anew, as without any."""


NOTHING_WHOLE = "the planner found no schedule in which every task is executed: report it, with the job"


class SearchResult(msgspec.Struct, frozen=True):
    """The result of a search.

    Attributes:
        programs: the best schedule.
        progress: its value and bound, and what it took.
        clock: its times, where the search has them.
        interrupted: whether Ctrl-C ended it.
    """

    programs: Programs
    progress: Progress
    clock: Clock | None = None
    interrupted: bool = False


def improve(
    problem: Problem,
    stops: Sequence[StoppingCriterion],
    seed: int = 0,
    watch: Callable[[int, int], None] | None = None,
) -> SearchResult:
    """Search for a better schedule until a stop is reached, the bound is met, or Ctrl-C is pressed.

    Simulated annealing towards one time unit less than the best value, over and over, from the best schedule and from
    those made in one go. A search of a large job also ends when its pattern meets the pattern's own bound. The same
    problem, seed and number of moves give the same result.

    Args:
        problem: what to plan.
        stops: the search ends when the first of them is reached; with none it ends at the bound only.
        seed: of the random choices.
        watch: called with (value, bound) at the beginning and at every improvement.
    """
    search = _Search(problem, _Spending(stops), Random(seed), watch)
    interrupted = False
    try:
        search.run()
    except KeyboardInterrupt:
        if search.best is None:
            raise
        interrupted = True
    if search.best is None:
        raise PlanningFailed(NOTHING_WHOLE)
    return SearchResult(search.best, search.progress(), search.clock, interrupted)


def is_walked(problem: Problem) -> bool:
    """Whether a schedule, or the pattern that all pipelines follow, is changed step by step.

    Not where servers of several pipelines hold several chunks: a window is that of one server there.
    """
    return problem.job.standard or problem.job.pipelines == 1


class _Spending:
    """What a search, and the searches that it makes for others, have spent together.

    Args:
        stops: when it is enough.

    Attributes:
        moves: changes tried.
    """

    def __init__(self, stops: Sequence[StoppingCriterion]) -> None:
        self.moves = 0
        self._stops = stops
        self._began = time.thread_time()

    def progress(self, value: int, bound: int) -> Progress:
        """How far a search has come, with what all have spent."""
        return Progress(value, bound, self.moves, time.thread_time() - self._began)

    def enough(self, progress: Progress, later: float = 0.0) -> bool:
        """True if a search that has come this far should end, where as many seconds are to be spent behind it."""
        spent = msgspec.structs.replace(progress, seconds=progress.seconds + later)
        return any(stop.reached(spent) for stop in self._stops)


class _Search:
    """One search.

    Args:
        problem: what is planned.
        spending: of this search and those that belong to it.
        random: source of all choices.
        watch: called with (value, bound) at every improvement.
        whole: for a search of a pattern, the one that follows it.
    """

    def __init__(
        self,
        problem: Problem,
        spending: _Spending,
        random: Random,
        watch: Callable[[int, int], None] | None = None,
        whole: "_Search | None" = None,
    ) -> None:
        self.problem = problem
        self.spending = spending
        self.random = random
        self.watch = watch
        self.whole = whole
        self.bound = lower_bound(problem).value
        self.best: Programs | None = None
        self.clock: Clock | None = None
        self.later = 0.0
        self.value = 0
        self.starts: list[tuple[int, int, Programs]] = []
        self.walking = False

    @property
    def met(self) -> bool:
        """True at the bound, and for a pattern also where those who follow it are at theirs."""
        return self.value <= self.bound or (self.whole is not None and self.whole.met)

    def progress(self) -> Progress:
        return self.spending.progress(self.value, self.bound)

    def ended(self) -> bool:
        return self.best is not None and (self.met or self.spending.enough(self.progress()))

    def take(self, programs: Programs, found: int, clock: Clock | None = None) -> None:
        """Keep a schedule of this value if it is the best, with its times if they are known."""
        if self.best is None or found < self.value:
            self.best, self.value, self.clock = programs, found, clock
            if self.watch is not None:
                self.watch(found, self.bound)
            if self.walking and self.whole is not None:
                self.whole.spread(self)

    def begin(self, programs: Programs) -> bool:
        """Keep a schedule that was made in one go, as one to walk from.

        False if it is none: it lacks tasks, or its servers wait for each other.
        """
        problem = self.problem
        if not is_whole(problem, programs):
            return False
        try:
            clock = run_clock(problem.job, problem.mode, instructions(problem, programs))
        except Deadlock:
            return False
        found = clock.period if problem.staggered else clock.makespan
        # The number breaks ties, so that programs are never compared.
        self.starts.append((found, len(self.starts), programs))
        self.take(programs, found, clock)
        return True

    def run(self) -> None:
        problem = self.problem
        if problem.tasks > LARGE or (problem.alike and problem.job.pipelines > 1):
            self.follow()
            if self.best is not None:
                return
            # Servers of a pattern wait for each other where a rule gives few of them all that the dead leave.
        for programs in self.constructed():
            self.begin(programs)
            if self.ended():
                return
        self.walk()

    def constructed(self) -> Iterator[Programs]:
        """Where to begin, from the cheapest on."""
        if not self.problem.job.standard:
            yield from chunk_schedules(self.problem)
            yield from self.patterned()
            return
        routes = balanced_routes(self.problem)
        for policy in POLICIES:
            yield list_schedule(self.problem, policy, routes)
        yield schedule_large(self.problem)
        yield from self.patterned()

    def patterned(self) -> Iterator[Programs]:
        """Around dead servers, the plans that follow a pattern."""
        for places in self.places() if self.problem.dead else ():
            pattern = self.pattern(places)
            assert pattern.best is not None
            yield spread(self.problem, pattern.best, places)

    def places(self) -> range:
        """The patterns to try, by their micro-batches: the one with room for all first."""
        most = busiest(self.problem)
        least = max(self.problem.job.micro_batches, most - FEWER)
        if not self.problem.job.standard:
            while least > self.problem.job.micro_batches and self.bound_of(least) > self.bound:
                if needed(self.problem, least - 1, IDLE) > self.bound_of(least - 1):
                    break
                least -= 1
        return range(most, least - 1, -1)

    def bound_of(self, places: int) -> int:
        return lower_bound(one_pipeline(self.problem, places)).value

    def pattern(self, places: int) -> "_Search":
        """A search of a pattern, with the best that can be made in one go.

        Where many guests are left over memory is kept for them, if that costs nothing by the bound.
        """
        problem = one_pipeline(self.problem, places)
        if not self.problem.job.standard and places < busiest(self.problem) - FEWER:
            spared = sparing(self.problem, places)
            if lower_bound(spared).value == lower_bound(problem).value:
                problem = spared
        search = _Search(problem, self.spending, self.random, whole=self)
        began, share = search.progress().seconds, self.problem.tasks / search.problem.tasks
        for number, programs in enumerate(search.constructed(), 1):
            search.begin(programs)
            progress = search.progress()
            self.later = FOLLOWING * share * (progress.seconds - began) / number
            # With several chunks there are many of them.
            many = not self.problem.job.standard and number >= LIKELY
            late = many and self.spending.enough(progress, self.later)
            if search.value <= search.bound or late:
                break
        return search

    def follow(self) -> None:
        """Search for a pattern that all pipelines follow."""
        most, *fewer = self.places()
        if fewer and not self.problem.job.standard:
            # To time a plan takes long where there are so many tasks: the pattern that promises most is first. One with
            # room for all keeps its value; a shorter one does not where servers idle for less than its guests take.
            shorter = self.pattern(fewer[-1])
            promises = shorter.value >= needed(self.problem, fewer[-1])
            if promises:
                self.crowd(shorter)
            # The longer pattern may be expected to take as much longer as it has more micro-batches.
            if self.best is not None and (self.ended() or self.value * fewer[-1] <= shorter.value * most):
                return
            pattern = self.pattern(most)
            if self.best is None or pattern.value < self.value:
                began = self.progress().seconds
                self.spread(pattern)
                progress = self.progress()
                later = CROWDING * (progress.seconds - began)
                if not (promises or self.met or self.spending.enough(progress, later)):
                    self.crowd(shorter)
            return
        pattern = self.pattern(most)
        self.spread(pattern)
        for places in fewer if self.problem.dead else ():
            if self.ended():
                return
            self.spread(self.pattern(places))
        if self.problem.dead and self.problem.job.standard and not self.ended():
            self.begin(schedule_large(self.problem, self.may_simulate))
        if pattern.problem.tasks <= LARGE and not self.ended():
            pattern.walk()

    def may_simulate(self) -> bool:
        """Whether the whole problem may be simulated once more; that counts as much as a plan made from a pattern."""
        self.spending.moves += self.problem.tasks // TASKS_A_MOVE
        return not self.ended()

    def spread(self, pattern: "_Search") -> None:
        """Take the schedule in which all pipelines follow a pattern."""
        assert pattern.best is not None
        places = pattern.problem.job.micro_batches
        programs = spread(self.problem, pattern.best, places)
        # With room for all it is no longer than the pattern, and without failures it is no shorter.
        room = places == busiest(self.problem)
        if not self.problem.dead or (room and pattern.value == self.bound):
            self.take(programs, pattern.value)
        else:
            self.begin(programs)
            if places < busiest(self.problem) and not self.ended():
                self.crowd(pattern)
        self.spending.moves += self.problem.tasks // TASKS_A_MOVE

    def crowd(self, pattern: "_Search") -> None:
        """Take the schedules in which all pipelines follow a pattern that has servers make up for guests left over.

        One is left over near the end: what it delays is not late yet where its pipeline has the last place free. Where
        each of its chunks delays another server, it is one in the middle, when the most W are there to be put off.
        """
        assert pattern.best is not None
        places = pattern.problem.job.micro_batches
        if not self.problem.job.standard:
            programs = spread(self.problem, pattern.best, places, 2 * places // 3)
            with suppress(Deadlock):
                split = self.problem.kinds == 3
                self.begin(refit(self.problem, programs, max(self.bound, pattern.value)) if split else programs)
            return
        programs = spread(self.problem, pattern.best, places, max(0, places - 2))
        if self.begin(programs) and self.problem.kinds == 3 and not self.ended():
            self.begin(refit(self.problem, programs, max(self.bound, pattern.value)))

    def walk(self) -> None:
        """Walk from the best schedule and from those made in one go, in turn."""
        if not is_walked(self.problem):
            return
        self.walking = True
        starts = sorted(self.starts)[:3]
        unit = max(1.0, sum(map(sum, self.problem.cost)) / (3 * len(self.problem.cost)))
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

    def anneal(self, begin: Programs, length: int, unit: float) -> bool:
        """Walk towards a better value; True if one was found."""
        walk = Walk(self.problem, begin, self.value - 1, self.random)
        for done in range(0, length, BATCH):
            temperature = unit * HOTTEST * (COLDEST / HOTTEST) ** (done / length)
            for _ in range(BATCH):
                if not walk.energy:
                    programs = walk.programs()
                    self.take(programs, value(self.problem, programs))
                    return True
                walk.step(temperature)
                self.spending.moves += 1
            walk.tidy()
            if self.ended():
                break
        return False
