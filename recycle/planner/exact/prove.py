"""The exact solver: proves what the least value of a problem is, or how far from it the best plan known may be.

It asks OR-Tools CP-SAT only one kind of question, whether a plan within a given value exists. With the value fixed,
every task has a short span to start in, so "no" is often proved at once where a search for the least value would go on
for minutes. A "no" raises the bound and a "yes" is a better plan. The question is put to two relaxations from the bound
upwards, and to the full model from the bound upwards and from the best plan downwards; all with a small effort at
first, and twice as much in the next round.

The models grow with the tasks times the peers of a stage: some thousand tasks are the most that is sensible.
"""

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from recycle.planner.greedy.list_scheduler import list_schedule
from recycle.planner.model.bounds import lower_bound
from recycle.planner.model.objective import value
from recycle.planner.model.problem import Problem, Programs

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from recycle.planner.exact.placed import PlacedModel
    from recycle.planner.exact.timeline import TimelineModel

FIRST_EFFORT = 0.5
"""Solver's deterministic seconds for the first question of each kind; one takes one to three seconds of a core."""

SEEDS = 2**31
"""Seeds that the solver tells apart."""

Improved: TypeAlias = Callable[[int, int, Programs], None]
Build: TypeAlias = "Callable[[Problem, int, int], TimelineModel | PlacedModel]"
Feasible: TypeAlias = Literal["yes", "no", "unknown"]


class ExactResult(msgspec.Struct, frozen=True):
    """What the solver found.

    Attributes:
        value: of the programs: the period of a staggered problem, the makespan of a global one.
        bound: no plan of the problem has a smaller value.
        status: ``optimal`` if the two are equal.
        programs: the tasks of every live server in the order in which it executes them.
    """

    value: int
    bound: int
    status: Literal["optimal", "bounded"]
    programs: Programs


def solve(
    problem: Problem,
    *,
    seconds: float,
    hint: Programs | None = None,
    seed: int = 0,
    on_improve: Improved | None = None,
) -> ExactResult:
    """Find the best plan, and prove that it is, as far as the time allows.

    The result depends on the seed and not on the machine if the search ends before its time with one worker. An
    interrupt (Ctrl-C) ends the search early: the best so far is returned. So it is at once if the value exceeds what
    the solver's arithmetic is made for (2**36 time units).

    Args:
        problem: what to plan.
        seconds: wall-clock time after which the search ends.
        hint: legal programs to improve on; those of the list scheduler if none are given. They must be given where
            servers hold several chunks.
        seed: of the solver's search.
        on_improve: called with value, bound and programs when the value falls or the bound rises.

    Returns:
        The best programs found and the bound that was proved.

    Raises:
        NoPlanError: a stage has no live server.
        Deadlock: the hint cannot be executed.
    """
    search = _Search(problem, time.monotonic() + seconds, seed, on_improve)
    search.start(hint or list_schedule(problem), lower_bound(problem).value)
    with contextlib.suppress(KeyboardInterrupt):
        search.run()
    return search.result()


class _Search:
    """The state of one search: the best plan, the bound, and what remains to be asked."""

    def __init__(self, problem: Problem, deadline: float, seed: int, on_improve: Improved | None) -> None:
        self.problem = problem
        self.deadline = deadline
        self.seed = seed
        self.on_improve = on_improve
        self.asked = 0
        self.round = 0
        self.value = 0
        self.bound = 0
        self.programs: Programs = {}

    @property
    def done(self) -> bool:
        return self.bound >= self.value or time.monotonic() >= self.deadline

    def start(self, programs: Programs, bound: int) -> None:
        self.bound = bound
        self.programs = programs
        self.value = value(self.problem, programs)

    def result(self) -> ExactResult:
        bound = min(self.bound, self.value)
        return ExactResult(self.value, bound, "optimal" if bound == self.value else "bounded", self.programs)

    def run(self) -> None:
        if self.done:
            return
        # Here and not above: the solver takes longer to import than most plans take to make.
        from recycle.planner.exact.placed import PlacedModel
        from recycle.planner.exact.relaxed import pool_peers, pool_stages
        from recycle.planner.exact.servers import ServerModel
        from recycle.planner.exact.timeline import LARGEST_VALUE

        if self.value > LARGEST_VALUE:
            return
        # What relaxations prove they prove soon, or not for a long time: they get a part of the effort.
        relaxations: list[Build] = [pool_stages] if self.problem.job.standard else []
        if relaxations and self.problem.mode.keeps_home:
            relaxations.append(pool_peers)
        full: Build = ServerModel if self.problem.job.standard else PlacedModel
        while not self.done:
            effort = FIRST_EFFORT * 2**self.round
            relaxations = [build for build in relaxations if self._climb(build, effort / 4) != "yes"]
            self._climb(full, effort)
            self._descend(full, effort)
            self.round += 1

    def _climb(self, build: Build, effort: float) -> Feasible:
        """Raise the bound while the answer is no, in growing steps; the last answer just above the bound."""
        answer: Feasible = "unknown"
        step = 1
        while not self.done:
            answer = self._ask(build, min(self.bound + step, self.value) - 1, effort)
            if answer == "no":
                step *= 2
            elif step == 1:
                break
            else:
                step = 1
        return answer

    def _descend(self, build: Build, effort: float) -> None:
        """Improve the plan while the answer is yes: half way to the bound, and if that fails by one."""
        while not self.done:
            middle = (self.bound + self.value - 1) // 2
            if self._ask(build, middle, effort) != "unknown":
                continue
            if middle == self.value - 1 or self._ask(build, self.value - 1, effort) == "unknown":
                break

    def _ask(self, build: Build, target: int, effort: float) -> Feasible:
        """Whether there is a plan between the bound and a target, and what follows from the answer."""
        from ortools.sat.python import cp_model

        from recycle.planner.exact.placed import PlacedModel
        from recycle.planner.exact.servers import ServerModel

        self.asked += 1
        built = build(self.problem, self.bound, target)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        # Search times have heavy tails, so no two questions are searched alike: another seed each time, and every other
        # time linear relaxations and probing, which mostly cost more than they bring but sometimes are what helps.
        solver.parameters.random_seed = (self.seed + self.asked) % SEEDS
        solver.parameters.max_deterministic_time = effort
        solver.parameters.max_time_in_seconds = max(0.0, self.deadline - time.monotonic())
        solver.parameters.linearization_level = self.asked % 2
        solver.parameters.cp_model_probing_level = self.asked % 2
        solver.parameters.catch_sigint_signal = False
        status = _solve_interruptibly(solver, built.model)
        if status == cp_model.INFEASIBLE:
            self.bound = target + 1
            self._report()
            return "no"
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return "unknown"
        if isinstance(built, ServerModel | PlacedModel):
            programs = built.programs(solver)
            # The model rounds large amounts, and sees no order where tasks take no time.
            if not all(self.problem.fits(server.stage, tasks) for server, tasks in programs.items()):
                return "unknown"
            self.programs = programs
            self.value = value(self.problem, programs)
            self._report()
        return "yes"

    def _report(self) -> None:
        if self.on_improve is not None:
            self.on_improve(self.value, min(self.bound, self.value), self.programs)


def _solve_interruptibly(solver: "cp_model.CpSolver", model: "cp_model.CpModel") -> "cp_model.CpSolverStatus":
    """Solve in a thread of its own: Ctrl-C reaches the main thread only while that runs Python.

    Raises:
        KeyboardInterrupt: after the solver has stopped.
    """
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(solver.solve, model)
        try:
            return future.result()
        except KeyboardInterrupt:
            # Asked before it has begun, the solver would not stop.
            while not future.done():
                solver.stop_search()
                wait([future], 0.1)
            raise
