"""The least value of a small problem, found by OR-Tools from its definition."""

from collections.abc import Sequence

from ortools.sat.python import cp_model

from recycle.holding import costs_on, holders, placed
from recycle.job import Server, Stage
from recycle.plan.clock import duration
from recycle.planner.model.problem import Problem


def least_value(problem: Problem, upper: int, effort: float = 0.2) -> int:
    """The best value that is found with some effort (the solver's deterministic seconds), the least in most cases.

    ``upper`` is a value that is known to be possible.
    """
    job = problem.job
    model = cp_model.CpModel()
    horizon = 2 * upper + sum(job.latency) * 2
    value = model.new_int_var(0, upper, "value")
    peers, kinds = holders(job), range(problem.kinds)
    spots = [(chunk, unit, kind) for chunk in range(len(job.stages)) for unit in problem.units for kind in kinds]
    start = {spot: model.new_int_var(0, horizon, "") for spot in spots}
    end = {spot: model.new_int_var(0, horizon, "") for spot in spots}
    host: dict[tuple[int, int], dict[int, cp_model.IntVar]] = {}
    for chunk in range(len(job.stages)):
        for unit in problem.units:
            choices = problem.hosts(job.places[chunk] if job.even else chunk, unit // job.micro_batches)
            host[chunk, unit] = {pipeline: model.new_bool_var("") for pipeline in choices}
            model.add_exactly_one(host[chunk, unit].values())
    for chunk, unit, kind in spots:
        for need in problem.needs[chunk][kind]:
            before, after = end[need.stage, unit, need.kind], start[chunk, unit, kind]
            model.add(before <= after)
            lag = job.lag(chunk, need.stage)
            for one, chosen in host[chunk, unit].items():
                for other, also in host[need.stage, unit].items():
                    if peers[chunk][one] != peers[need.stage][other]:
                        model.add(before + lag <= after).only_enforce_if([chosen, also])
    live = [server for server in job.servers() if server not in problem.dead]
    opening = {server: model.new_int_var(0, horizon, "") for server in live}
    ready = [model.new_int_var(0, horizon, "") for _ in job.stages]
    for chunk, unit, kind in spots:
        model.add(end[chunk, unit, kind] <= ready[chunk])
    for server in live:
        here_is = placed(job, server)
        chunks = here_is.chunks
        steps = [model.new_int_var(0, 2 * horizon, "") for _ in chunks]
        busy, holds, amounts = [], [], []
        for chunk in chunks:
            for unit in problem.units:
                if job.pipeline_of(server) not in host[chunk, unit]:
                    continue
                here = host[chunk, unit][job.pipeline_of(server)]
                for begin, until, amount in _memory(job.stages[chunk], problem.kinds):
                    length = model.new_int_var(0, horizon, "")
                    times = start[chunk, unit, begin], length, end[chunk, unit, until]
                    holds.append(model.new_optional_interval_var(*times, here, ""))
                    amounts.append(amount)
                for kind, op in enumerate(problem.ops):
                    spot = (chunk, unit, kind)
                    cost = duration(costs_on(job, server)[chunk], op)
                    busy.append(model.new_optional_interval_var(start[spot], cost, end[spot], here, ""))
                    for step in steps:
                        model.add(end[spot] <= step).only_enforce_if(here)
                    if problem.staggered:
                        model.add(opening[server] <= start[spot]).only_enforce_if(here)
        if busy:
            model.add_no_overlap(busy)
            model.add_cumulative(holds, amounts, here_is.limit)
        if problem.staggered:
            _close(model, value, problem, server, opening[server], ready, steps)
    if not problem.staggered:
        for time in ready:
            model.add(time <= value)
    model.minimize(value)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = effort
    status = solver.solve(model)
    assert status != cp_model.INFEASIBLE, "a legal plan is excluded"
    return round(solver.objective_value) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else upper


def _memory(stage: Stage, kinds: int) -> list[tuple[int, int, int]]:
    """The kinds of task from whose start and to whose end a micro-batch holds memory, and how much."""
    freed, taken, last = stage.released_at_input_gradient, stage.taken_at_input_gradient, kinds - 1
    return [(0, 1, freed), (0, last, stage.held - freed), (1, last, taken)]


def _close(
    model: cp_model.CpModel,
    value: cp_model.IntVar,
    problem: Problem,
    server: Server,
    opening: cp_model.IntVar,
    ready: Sequence[cp_model.IntVar],
    steps: Sequence[cp_model.IntVar],
) -> None:
    """The updates of a server: behind its own work, each when its chunk is ready, one at a time, inside its window."""
    intervals = []
    costs = costs_on(problem.job, server)
    for (chunk, stage), step in zip(costs.items(), steps, strict=True):
        model.add(step >= ready[chunk])
        model.add(step >= opening)
        model.add(step + stage.update <= opening + value)
        intervals.append(model.new_fixed_size_interval_var(step, stage.update, ""))
    model.add_no_overlap(intervals)
