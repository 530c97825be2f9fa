"""The full model for servers that hold several chunks: every rule of the planning problem, and no relaxation of it.

All tasks start within three times the value of the first. Those of a micro-batch but its W lie inside the window of the
server that executes its chunk 0, for they come between its first F and its last I; so every window meets one of these
windows. And these begin within one value of each other: each ends after the last W of chunk 0, wherever that is.
"""

from itertools import pairwise, product
from math import gcd

from ortools.sat.python import cp_model

from recycle.planner.exact.timeline import MOST_UNITS, Spot, make_routes, read_programs
from recycle.planner.model.problem import Problem, Programs


class PlacedModel:
    """A start time for every task and a server for every micro-batch at each chunk.

    Among plans that differ only by exchanging interchangeable micro-batches it keeps at least one: they are numbered in
    the order of their F at chunk 0.

    Args:
        problem: what is planned.
        _: a proven bound on the value, which this model does not need.
        upper: the greatest value that is allowed.
    """

    def __init__(self, problem: Problem, _: int, upper: int) -> None:
        self.problem = problem
        self.model = cp_model.CpModel()
        self._upper = upper
        self._horizon = 3 * upper if problem.staggered else upper
        chunks, units = range(len(problem.job.stages)), range(problem.total)
        self._start = {
            Spot(*key): self.model.new_int_var(0, self._horizon, "")
            for key in product(chunks, units, range(problem.kinds))
        }
        self._routes = make_routes(self.model, problem)
        self._add_dependencies()
        self._ready = [self._make_ready(chunk) for chunk in chunks] if problem.staggered else []
        for place, live in enumerate(problem.live):
            for pipeline in live:
                self._add_server(place, pipeline)
        for group in problem.groups:
            for earlier, later in pairwise(group):
                self.model.add(self._start[Spot(0, earlier, 0)] <= self._start[Spot(0, later, 0)])

    def programs(self, solver: cp_model.CpSolver) -> Programs:
        """The tasks of every live server in the order of their starts in the solver's solution."""
        # Of tasks that start together, those that take no time come first, and those that others need before those.
        return read_programs(self.problem, self._start, self._routes, solver)

    def _cost(self, spot: Spot) -> int:
        return self.problem.cost[spot.stage][spot.kind]

    def _end(self, spot: Spot) -> cp_model.LinearExprT:
        return self._start[spot] + self._cost(spot)

    def _add_dependencies(self) -> None:
        job = self.problem.job
        for spot, start in self._start.items():
            for need in self.problem.needs[spot.stage][spot.kind]:
                end = self._end(Spot(need.stage, spot.unit, need.kind))
                self.model.add(end + need.lag <= start)
                lag = job.lag(spot.stage, need.stage)
                if need.lag < lag:
                    # Nothing is transferred where one server of the place executes both chunks.
                    mine, other = self._routes[spot.stage][spot.unit], self._routes[need.stage][spot.unit]
                    for pipeline, chosen in mine.items():
                        apart = self.model.add(end + lag <= start)
                        apart.only_enforce_if(chosen, _no(other[pipeline]))

    def _make_ready(self, chunk: int) -> cp_model.IntVar:
        """When the gradients of a chunk are complete."""
        ready = self.model.new_int_var(0, self._horizon, "")
        for unit in range(self.problem.total):
            self.model.add(self._end(Spot(chunk, unit, self.problem.kinds - 1)) <= ready)
        return ready

    def _add_server(self, place: int, pipeline: int) -> None:
        """One task at a time, within memory; and a window from the first of them to the end of the last update."""
        problem, model = self.problem, self.model
        chunks = problem.job.chunks[place]
        stages = [problem.job.stages[chunk] for chunk in chunks]
        updates = [stage.update for stage in stages] if problem.staggered else []
        opening = model.new_int_var(0, self._horizon, "")
        steps = [model.new_int_var(0, self._horizon, "") for _ in updates]
        work: list[cp_model.IntervalVar] = []
        memory: list[tuple[cp_model.IntervalVar, int]] = []
        load: list[cp_model.LinearExprT] = []
        exact = gcd(*(amount for chunk in chunks for amount in (*problem.kept(chunk), problem.acquire[chunk][1])))
        memory_unit = max(exact, problem.job.limit(place) // MOST_UNITS)
        for chunk, unit in product(chunks, range(problem.total)):
            present = self._routes[chunk][unit].get(pipeline)
            if present is None:
                continue
            load.append(present * sum(problem.cost[chunk]))
            first, last = Spot(chunk, unit, 0), Spot(chunk, unit, problem.kinds - 1)
            for kind in range(problem.kinds):
                spot = Spot(chunk, unit, kind)
                start, cost = self._start[spot], self._cost(spot)
                work.append(model.new_optional_fixed_size_interval_var(start, cost, present, ""))
                if amount := problem.kept(chunk)[kind] // memory_unit:
                    hold = model.new_int_var(0, self._horizon, "")
                    held = model.new_optional_interval_var(self._start[first], hold, self._end(spot), present, "")
                    memory.append((held, amount))
            if amount := problem.acquire[chunk][1] // memory_unit:
                hold, gradient = model.new_int_var(0, self._horizon, ""), self._start[Spot(chunk, unit, 1)]
                memory.append((model.new_optional_interval_var(gradient, hold, self._end(last), present, ""), amount))
            if problem.staggered:
                model.add(opening <= self._start[first]).only_enforce_if(present)
                for step, of, update in zip(steps, chunks, updates, strict=True):
                    model.add(self._end(last) <= step).only_enforce_if(present)
                    model.add(self._ready[of] <= step).only_enforce_if(present)
                    model.add(step + update <= opening + self._upper).only_enforce_if(present)
            else:
                model.add(self._end(last) <= self._upper).only_enforce_if(present)
        if not work:
            return
        model.add_no_overlap(work)
        if memory:
            intervals, amounts = zip(*memory, strict=True)
            model.add_cumulative(intervals, amounts, problem.job.limit(place) // memory_unit)
        model.add_no_overlap(
            [model.new_fixed_size_interval_var(step, update, "") for step, update in zip(steps, updates, strict=True)]
        )
        model.add(sum(load) + sum(updates) <= self._upper)


def _no(literal: cp_model.LiteralT) -> cp_model.LiteralT:
    return (not literal) if isinstance(literal, bool) else ~literal
