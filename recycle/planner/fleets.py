"""Fleets scored by the planner: what an iteration of their pipelines takes, fill and drain included."""

from recycle.placing.fleet import Fleet, PeriodOf, fleet_job
from recycle.placing.layers import Model
from recycle.placing.templates import Template
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.bounds import lower_bound, period
from recycle.planner.model.problem import make_problem

STAGGERED = Mode("split", "staggered", "home")


def proven_period(model: Model) -> PeriodOf:
    """What no plan of a pipeline goes below, by the planner's rules: work, fill and drain under its memory limits."""

    def of(template: Template, micro_batches: int) -> int:
        problem = make_problem(model.pipeline(template.runs, micro_batches), (), STAGGERED)
        return period(problem, lower_bound(problem).value)

    return of


def plan_fleet(model: Model, fleet: Fleet, effort: Effort) -> Plan:
    """The plan of a fleet whose servers all live, of compute form; of all pipelines together: steps wait for peers.

    Raises:
        JobError: a server has not the memory for a single micro-batch.
    """
    return make_plan(fleet_job(model, fleet), (), STAGGERED, effort, "compute")
