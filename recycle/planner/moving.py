"""Whether layers should move after failures: the best fleet of a plan's live servers against re-routing."""

import math

from recycle.job import Server
from recycle.placing.decision import BANDWIDTH, LAYER_BYTES, Decision, Move, Outlook, decide
from recycle.placing.fleet import choose_fleet
from recycle.placing.layers import Run, layers_of
from recycle.placing.templates import make_templates
from recycle.placing.transition import Transition, least_copies
from recycle.plan.plan import Plan
from recycle.planner.fleets import plan_fleet, proven_period
from recycle.planner.make import Effort
from recycle.planner.model.stopping import MaxMoves

MOST_SERVERS = 256
"""Of more, fleets and copies take too long to find beside an explanation."""

ONCE = Effort((MaxMoves(1),), "1 move")


def weigh_move(plan: Plan, layers: int, iteration: float, outlook: Outlook) -> tuple[Decision, Transition] | None:
    """Decide whether a plan's live servers should hold other layers.

    Every layer takes an equal share of what its stage takes. When the layers have moved, all stand still for an
    iteration.

    Args:
        plan: around dead servers, of a job with one chunk per server.
        layers: of the model, at least one per stage.
        iteration: seconds of the job's fault-free 1F1B iteration.
        outlook: how long servers stay as they are.

    Returns:
        The decision and the copies that it is about; None where nothing is dead, there are too many servers, or the
        live ones cannot form a fleet that survives as much.

    Raises:
        JobError: there are fewer layers than stages.
    """
    job = plan.job
    model = layers_of(job, layers, LAYER_BYTES)
    live = [server for server in job.servers() if server not in plan.dead]
    if not plan.dead or len(live) > MOST_SERVERS:
        return None
    templates = make_templates(model, 2 * job.depth, job.micro_batches)
    total = job.pipelines * job.micro_batches
    fleet = choose_fleet(templates, len(live), total, proven_period(model), min(1, job.pipelines - 1))
    if fleet is None:
        return None
    holding: dict[Server, Run] = {
        server: (server.stage * layers // job.depth, (server.stage + 1) * layers // job.depth) for server in live
    }
    transition = least_copies(model, holding, {server: server.pipeline for server in live}, fleet)
    seconds = iteration / plan.baseline if plan.baseline else math.inf
    then = plan_fleet(model, fleet, ONCE).period / layers * seconds
    move = Move(plan.period * seconds, then, transition.size, transition.busiest, BANDWIDTH, then)
    return decide(move, outlook.until_change(len(live), len(plan.dead))), transition
