"""The full model: every rule of the planning problem, with each micro-batch on one server of each stage."""

from collections.abc import Sequence
from itertools import combinations, pairwise
from math import comb

from ortools.sat.python import cp_model

from recycle.planner.exact.timeline import Spot, TimelineModel, make_routes, read_programs
from recycle.planner.model.problem import Problem, Programs

MOST_ORDERED = 100_000
"""Tasks of pairs of interchangeable micro-batches that are put in order: they take a second or two to write down."""


class ServerModel(TimelineModel):
    """A start time for every task and a server for every micro-batch at each stage.

    Among plans that differ only by exchanging interchangeable micro-batches or servers it keeps at least one:

    - Micro-batches of one group are numbered in the order of their F at stage 0, and keep that order up to the first
      stage at which their servers may differ: up to there an exchange of all that follows leaves to every server the
      same tasks at the same times.
    - Those that have the same server at each stage are executed in the same order everywhere, by the same exchange.
    - Servers of one stage are interchangeable where any of them may execute anything, and are numbered by their first
      use.

    The last two grow with the pairs of micro-batches, and are left out where these are too many.

    Args:
        problem: what is planned.
        lower: a proven bound on the value.
        upper: the greatest value that is allowed.
    """

    def __init__(self, problem: Problem, lower: int, upper: int) -> None:
        super().__init__(problem, lower, upper)
        self.routes = make_routes(self.model, problem)
        self._add_servers()
        self._add_pools()
        pairs = sum(comb(len(group), 2) for group in problem.groups)
        self._has_few_pairs = pairs * problem.job.depth * problem.kinds <= MOST_ORDERED
        self._add_order()
        if not problem.mode.keeps_home and self._has_few_pairs:
            self._number_servers()

    def programs(self, solver: cp_model.CpSolver) -> Programs:
        """The tasks of every live server in the order of their starts in the solver's solution."""
        return read_programs(self.problem, self.start, self.routes, solver)

    def _add_servers(self) -> None:
        problem = self.problem
        for stage, live in enumerate(problem.live):
            # A server's own compute and its stage's update fit into the value: without it proofs rarely end.
            outside = problem.job.stages[stage].update if problem.staggered else 0
            for pipeline in live:
                load: list[cp_model.LiteralT] = []
                work: list[cp_model.IntervalVar] = []
                memory: list[tuple[cp_model.IntervalVar, int]] = []
                for unit, choices in enumerate(self.routes[stage]):
                    if pipeline in choices:
                        load.append(choices[pipeline])
                        work += self._work(stage, unit, choices[pipeline])
                        memory += self.memory(stage, unit, choices[pipeline])
                if load:
                    intervals, amounts = zip(*memory, strict=True)
                    self.model.add_no_overlap(work)
                    self.model.add_cumulative(intervals, amounts, self.memory_limit(stage))
                    self.model.add(sum(load) * sum(problem.cost[stage]) + outside <= self.value)

    def _work(self, stage: int, unit: int, present: cp_model.LiteralT) -> list[cp_model.IntervalVar]:
        spots = [Spot(stage, unit, kind) for kind in range(self.problem.kinds)]
        if present is True:
            return [self.interval[spot] for spot in spots]
        return [
            self.model.new_optional_fixed_size_interval_var(
                self.start[spot], self.problem.cost[stage][spot.kind], present, ""
            )
            for spot in spots
        ]

    def _add_pools(self) -> None:
        """What the servers of a stage can do together: implied, but seen before the routes are chosen."""
        units = range(self.problem.total)
        for stage, live in enumerate(self.problem.live):
            if len(live) > 1 and any(len(choices) > 1 for choices in self.routes[stage]):
                self.limit_work(stage, units, len(live))
                self.limit_memory(stage, units, len(live))

    def _add_order(self) -> None:
        for group in self.problem.groups:
            routed = [stage for stage, row in enumerate(self.routes) if len(row[group[0]]) > 1]
            for stage in range(routed[0] + 1 if routed else 0):
                self.take_in_order(stage, 0, group, len(self.problem.live[stage]) if stage == routed[0] else 1)
            if not routed:
                for stage in range(self.problem.job.depth):
                    for kind in range(self.problem.kinds):
                        self.take_in_order(stage, kind, group, 1)
                continue
            for pair in combinations(group, 2) if self._has_few_pairs else ():
                self._order_alike(*pair, routed)

    def _order_alike(self, earlier: int, later: int, routed: Sequence[int]) -> None:
        model = self.model
        together = []
        for stage in routed:
            same = model.new_bool_var("")
            for pipeline, chosen in self.routes[stage][earlier].items():
                model.add_bool_or([~chosen, ~self.routes[stage][later][pipeline], same])
            together.append(same)
        alike = model.new_bool_var("")
        model.add_bool_or([*(~same for same in together), alike])
        for stage in range(self.problem.job.depth):
            for kind in range(self.problem.kinds):
                first, second = Spot(stage, earlier, kind), Spot(stage, later, kind)
                model.add(self.end(first) <= self.start[second]).only_enforce_if(alike)

    def _number_servers(self) -> None:
        for stage, live in enumerate(self.problem.live):
            for previous, pipeline in pairwise(live):
                used: list[cp_model.LiteralT] = []
                for choices in self.routes[stage]:
                    self.model.add_bool_or([~choices[pipeline], *used])
                    used.append(choices[previous])
