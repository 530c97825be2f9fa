"""What all solver models share: a start time for every task, the dependencies, and the value to be made least."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import gcd
from typing import NamedTuple, TypeAlias

from ortools.sat.python import cp_model

from recycle.job import Server
from recycle.planner.model.bounds import heads, round_trips
from recycle.planner.model.problem import Problem, Programs

MOST_UNITS = 2**12
"""Memory units of a server at most: the solver's 64 bits hold products of times and memory, summed over all tasks."""

LARGEST_VALUE = 2**36
"""The greatest value that can be asked for, for the same reason."""


class Spot(NamedTuple):
    """One task: kind k of a micro-batch (``unit`` is home * M + m) at a stage."""

    stage: int
    unit: int
    kind: int


MemoryPart: TypeAlias = tuple[cp_model.IntervalVar, int]
"""When memory is held, and how much."""


Routes: TypeAlias = Sequence[Sequence[Mapping[int, cp_model.LiteralT]]]
"""Per chunk and micro-batch, whether it is executed on the server of each pipeline that may."""


def make_routes(model: cp_model.CpModel, problem: Problem) -> Routes:
    """Choices of a server for every micro-batch at every chunk."""

    def choices(place: int, unit: int) -> Mapping[int, cp_model.LiteralT]:
        pipelines = problem.hosts(place, unit // problem.job.micro_batches)
        if len(pipelines) == 1:
            return {pipelines[0]: True}
        chosen: dict[int, cp_model.LiteralT] = {pipeline: model.new_bool_var("") for pipeline in pipelines}
        model.add_exactly_one(chosen.values())
        return chosen

    return [[choices(place, unit) for unit in range(problem.total)] for place in problem.job.places]


def read_programs(
    problem: Problem, start: Mapping[Spot, cp_model.IntVar], routes: Routes, solver: cp_model.CpSolver
) -> Programs:
    """The tasks of every live server in the order of their starts in the solver's solution."""
    # Of tasks that start together, those that take no time come first, and those that others need before those.
    job, count = problem.job, len(problem.job.stages)
    found: dict[Server, list[tuple[int, bool, int, int]]] = {
        Server(pipeline, place): [] for place, live in enumerate(problem.live) for pipeline in live
    }
    for spot, time in start.items():
        place = job.places[spot.stage]
        choices = routes[spot.stage][spot.unit]
        pipeline = next(pipeline for pipeline, chosen in choices.items() if solver.boolean_value(chosen))
        takes_time = problem.cost[spot.stage][spot.kind] > 0
        rank = (spot.stage, 2 * count - spot.stage, 2 * count + 1)[spot.kind]
        task = (job.chunks[place].index(spot.stage) * problem.total + spot.unit) * 3 + spot.kind
        found[Server(pipeline, place)].append((solver.value(time), takes_time, rank, task))
    return {server: [task for *_, task in sorted(tasks)] for server, tasks in found.items()}


class TimelineModel:
    """Start times, dependencies and windows; resources are added by the models built on it.

    Time 0 is the start of the iteration at stage 0. A staggered stage begins when its own first task does.

    Args:
        problem: what is planned.
        lower: a proven bound on the value.
        upper: the greatest value that is allowed.
    """

    def __init__(self, problem: Problem, lower: int, upper: int) -> None:
        self.problem = problem
        self.upper = upper
        self.model = cp_model.CpModel()
        self.value = self.model.new_int_var(lower, upper, "value")
        self.start: dict[Spot, cp_model.IntVar] = {}
        self.interval: dict[Spot, cp_model.IntervalVar] = {}
        self.hold: dict[Spot, cp_model.IntVar] = {}
        self.opening: list[cp_model.IntVar] = []
        self._add_tasks()
        self._add_dependencies()
        self._add_windows()

    def end(self, spot: Spot) -> cp_model.LinearExprT:
        """When a task ends."""
        return self.start[spot] + self.problem.cost[spot.stage][spot.kind]

    def memory(self, stage: int, unit: int, present: cp_model.LiteralT = True) -> list[MemoryPart]:
        """What one micro-batch holds at a stage: an interval and an amount for each task that releases some.

        Amounts are in memory units of the stage; that of I is held from its own start on, the others from that of F.

        Args:
            stage: where.
            unit: the micro-batch.
            present: whether it is to be counted.
        """
        first, gradient = self.start[Spot(stage, unit, 0)], self.start[Spot(stage, unit, 1)]
        parts = []
        for kind, amount in enumerate(self.problem.kept(stage)):
            if amount:
                spot = Spot(stage, unit, kind)
                interval = self.model.new_optional_interval_var(first, self.hold[spot], self.end(spot), present, "")
                parts.append((interval, amount // self.memory_unit(stage)))
        if taken := self.problem.acquire[stage][1]:
            last = Spot(stage, unit, self.problem.kinds - 1)
            hold = self.model.new_int_var(0, self.upper, "")
            interval = self.model.new_optional_interval_var(gradient, hold, self.end(last), present, "")
            parts.append((interval, taken // self.memory_unit(stage)))
        return parts

    def memory_unit(self, stage: int) -> int:
        """What amounts of memory are counted in. They and the limit are rounded down, which excludes no legal plan."""
        exact = gcd(*self.problem.kept(stage), self.problem.acquire[stage][1])
        return max(exact, self.problem.job.stages[stage].limit // MOST_UNITS)

    def memory_limit(self, stage: int) -> int:
        """Memory of one server, in memory units of the stage."""
        return self.problem.job.stages[stage].limit // self.memory_unit(stage)

    def limit_memory(self, stage: int, units: Iterable[int], servers: int) -> None:
        """Micro-batches that share servers hold no more than their memory together."""
        parts = [part for unit in units for part in self.memory(stage, unit)]
        intervals, amounts = zip(*parts, strict=True)
        self.model.add_cumulative(intervals, amounts, servers * self.memory_limit(stage))

    def limit_work(self, stage: int, units: Sequence[int], servers: int) -> None:
        """Micro-batches that share servers run no more tasks at a time than there are servers."""
        intervals = [self.interval[Spot(stage, unit, kind)] for unit in units for kind in range(self.problem.kinds)]
        if servers == 1:
            self.model.add_no_overlap(intervals)
        else:
            self.model.add_cumulative(intervals, [1] * len(intervals), servers)

    def take_in_order(self, stage: int, kind: int, units: Sequence[int], servers: int) -> None:
        """Start the tasks of one kind in the given order; a task ends before the ``servers``-th after it starts."""
        starts = [self.start[Spot(stage, unit, kind)] for unit in units]
        if servers > 1:
            for earlier, later in pairwise(starts):
                self.model.add(earlier <= later)
        cost = self.problem.cost[stage][kind]
        for earlier, later in zip(starts, starts[servers:], strict=False):
            self.model.add(earlier + cost <= later)

    def recycle_in_order(self, stage: int, units: Sequence[int], servers: int) -> None:
        """For micro-batches that start and end in the given order: an F waits until enough memory is released."""
        settings = self.problem.job.stages[stage]
        # Whatever is released by I or by W, all of it is held until I ends and the rest of it until W ends.
        for kind, amount in ((1, settings.held), (2, self.problem.kept(stage)[2])):
            if amount:
                room = servers * (settings.limit // amount)
                for earlier, later in zip(units, units[room:], strict=False):
                    self.model.add(self.end(Spot(stage, earlier, kind)) <= self.start[Spot(stage, later, 0)])

    def _add_tasks(self) -> None:
        problem, job = self.problem, self.problem.job
        earliest, trips = heads(problem), round_trips(problem)
        ways_back = accumulate((problem.cost[s][1] + job.latency[s] for s in range(job.depth - 1)), initial=0)
        update = job.stages[0].update if problem.staggered else 0
        # Every I is followed by those of the stages before it and by the W of stage 0, inside the window of stage 0.
        finish = self.upper - update - problem.cost[0][2]
        for stage, way_back in enumerate(ways_back):
            forward, gradient, weight = problem.cost[stage]
            last_gradient = finish - way_back - gradient
            last_forward = last_gradient - trips[stage] - forward
            if problem.staggered:
                latest_opening = last_forward if stage else 0
                self.opening.append(self.model.new_int_var(earliest[stage], latest_opening, f"opening {stage}"))
                last_weight = latest_opening + self.upper - job.stages[stage].update - weight
            else:
                last_weight = self.upper - weight
            first_gradient = earliest[stage] + forward + trips[stage]
            spans = (
                (earliest[stage], last_forward),
                (first_gradient, last_gradient),
                (first_gradient + gradient, last_weight),
            )
            for unit in range(problem.total):
                for kind in range(problem.kinds):
                    spot = Spot(stage, unit, kind)
                    start = self.model.new_int_var(*spans[kind], f"{stage} {unit} {kind}")
                    self.start[spot] = start
                    self.interval[spot] = self.model.new_fixed_size_interval_var(start, problem.cost[stage][kind], "")
                    if problem.kept(stage)[kind]:
                        self.hold[spot] = self.model.new_int_var(0, spans[kind][1] + self.problem.cost[stage][kind], "")
                        self.model.add(self.start[Spot(stage, unit, 0)] + self.hold[spot] == self.end(spot))

    def _add_dependencies(self) -> None:
        for spot, start in self.start.items():
            for need in self.problem.needs[spot.stage][spot.kind]:
                self.model.add(self.end(Spot(need.stage, spot.unit, need.kind)) + need.lag <= start)

    def _add_windows(self) -> None:
        problem = self.problem
        for stage, settings in enumerate(problem.job.stages):
            for unit in range(problem.total):
                end = self.end(Spot(stage, unit, problem.kinds - 1))
                if problem.staggered:
                    self.model.add(self.opening[stage] <= self.start[Spot(stage, unit, 0)])
                    self.model.add(end + settings.update <= self.opening[stage] + self.value)
                else:
                    self.model.add(end <= self.value)
