"""What one dead server costs a Megatron job, by re-routing and by what could be done instead."""

from typing import NamedTuple

from recycle.job import Server
from recycle.megatron.flag.command.command_line import CommandLine
from recycle.megatron.flag.command.planning import Source
from recycle.placing.fleet import choose_fleet
from recycle.placing.layers import layers_of
from recycle.placing.templates import Templates, make_templates
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan
from recycle.planner.fleets import plan_fleet, proven_period
from recycle.planner.moving import MOST_SERVERS, ONCE
from recycle.study.constants import MEASURED

LAYERS_OF_A_STAGE = 8
"""Where the command line does not say how many there are."""

MATTERS = 2.0
"""From so many times the share of servers that are lost, what re-routing costs is worth a move of layers."""


class FailureCost(NamedTuple):
    """What re-routing around one dead server costs.

    Attributes:
        stage: of the server.
        period: time of an iteration with it dead.
        of_before: the throughput, against that with all servers.
        throughput: of the plan around it, against fault-free 1F1B.
    """

    stage: int
    period: int
    of_before: float
    throughput: float


class Restart(NamedTuple):
    """What a start from a checkpoint costs at each failure, before training goes on.

    Attributes:
        iterations: that are made again in the mean; None for all, where no checkpoint is made.
        least: seconds of standing still, of the quickest that was measured elsewhere.
        most: the same, of the slowest.
    """

    iterations: float | None
    least: float
    most: float


class FailureCosts(NamedTuple):
    """What one dead server costs.

    Attributes:
        rerouted: by re-routing, for each stage; empty where a stage has one server.
        without_pipeline: the throughput without its pipeline, against that before, with a smaller batch.
        layers_moved: the throughput where its pipeline's layers move to those that are left of it, and micro-batches
            are shared out anew; None where re-routing costs little, or nothing can move.
        restart: what a start from a checkpoint costs.
    """

    rerouted: tuple[FailureCost, ...]
    without_pipeline: float
    layers_moved: float | None
    restart: Restart


def failure_costs(line: CommandLine, source: Source, whole: Plan) -> FailureCosts:
    """What the death of a server would cost.

    Args:
        line: the job's command line.
        source: of its plans.
        whole: the plan in which all servers are alive.
    """
    pipelines, stages = line.shape.pipelines, line.shape.stages
    rerouted: list[FailureCost] = []
    for stage in range(stages if pipelines > 1 else 0):
        plan = source.plan([Server(0, stage)])
        rerouted.append(FailureCost(stage, plan.period, whole.period / plan.period, plan.throughput))
    worst = max((1 - each.of_before for each in rerouted), default=0.0)
    moved = None
    if worst > MATTERS / (pipelines * stages):
        moved = _moved(whole, source.mode, line.setting("num_layers") or LAYERS_OF_A_STAGE * stages)
    every = line.setting("save_interval") if line.setting("save") is not None else None
    restart = Restart(
        None if every is None else every / 2,
        min(each.varuna_restart for each in MEASURED),
        max(each.varuna_restart for each in MEASURED),
    )
    return FailureCosts(tuple(rerouted), (pipelines - 1) / pipelines, moved, restart)


def _moved(whole: Plan, mode: Mode, layers: int) -> float | None:
    job = whole.job
    live = job.pipelines * job.depth - 1
    if not job.standard or job.depth == 1 or layers < job.depth or live > MOST_SERVERS:
        return None
    model = layers_of(job, layers)
    # The others keep their layers, and the pipeline of the dead server is cut among those that are left of it.
    found = make_templates(model, job.depth, job.micro_batches, in_memory=1).by_servers
    templates = Templates(model, {size: found[size] for size in (job.depth - 1, job.depth) if size in found})
    total, period = job.pipelines * job.micro_batches, proven_period(model, mode)
    fleet = choose_fleet(templates, live, total, period, min(1, job.pipelines - 1), job.pipelines)
    return None if fleet is None else whole.period * layers / plan_fleet(model, fleet, ONCE, mode).period
