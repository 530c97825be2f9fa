"""What a dead server and a lost host cost a Megatron job, by re-routing and by what could be done instead."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from recycle.errors import NoPlanError
from recycle.job import DeadServers, Server
from recycle.megatron.flag.command.command_line import CommandLine
from recycle.megatron.flag.command.planning import Source
from recycle.megatron.flag.command.server_ranks import hosts_of, lost_with_each, servers_of
from recycle.placing.fleet import choose_fleet
from recycle.placing.layers import layers_of, most_layers
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


class HostCost(NamedTuple):
    """What re-routing costs around the servers of one host.

    Attributes:
        dead: the servers of the first host of this kind.
        hosts: how many leave as many live servers of each stage.
        period: time of an iteration without them.
        of_before: the throughput, against that with all servers.
        throughput: the throughput, against fault-free 1F1B.
    """

    dead: tuple[str, ...]
    hosts: int
    period: int
    of_before: float
    throughput: float


class HostCosts(NamedTuple):
    """What the loss of one host costs.

    Attributes:
        servers: the fewest that die with a host, and the most.
        rerouted: by re-routing, for each kind of host; empty where hosts have one server.
        fatal: hosts that have all servers of a stage, so that no peer is left.
        torn: other hosts that have both servers which hold a shard of the optimizer's state.
        unplanned: hosts around which the catalogue has no plan.
        pipelines: that the host whose loss costs the most has servers of; 0 where none is planned for.
        without_pipelines: the throughput without these, against that before, with a smaller batch.
        layers_moved: the throughput where their layers move to those that are left of them; None as for a server.
    """

    servers: tuple[int, int]
    rerouted: tuple[HostCost, ...] = ()
    fatal: int = 0
    torn: int = 0
    unplanned: int = 0
    pipelines: int = 0
    without_pipelines: float | None = None
    layers_moved: float | None = None


class FailureCosts(NamedTuple):
    """What a dead server, and a lost host, cost.

    Attributes:
        rerouted: by re-routing, for each stage; empty where a stage has one server.
        without_pipeline: the throughput without its pipeline, against that before, with a smaller batch.
        layers_moved: the throughput where its pipeline's layers move to those that are left of it, and micro-batches
            are shared out anew; None where re-routing costs little, or nothing can move.
        restart: what a start from a checkpoint costs.
        host: what the loss of a host costs.
    """

    rerouted: tuple[FailureCost, ...]
    without_pipeline: float
    layers_moved: float | None
    restart: Restart
    host: HostCosts


def failure_costs(line: CommandLine, ranks_per_host: int, source: Source, whole: Plan) -> FailureCosts:
    """What the death of a server, and the loss of a host, would cost.

    Args:
        line: the job's command line.
        ranks_per_host: how many ranks run on a host.
        source: of its plans.
        whole: the plan in which all servers are alive.
    """
    pipelines, stages = line.shape.pipelines, line.shape.stages
    layers = line.setting("num_layers") or LAYERS_OF_A_STAGE * stages
    rerouted: list[FailureCost] = []
    for stage in range(stages if pipelines > 1 else 0):
        plan = source.plan([Server(0, stage)])
        rerouted.append(FailureCost(stage, plan.period, whole.period / plan.period, plan.throughput))
    worst = min((each.of_before for each in rerouted), default=1.0)
    moved = _moved(whole, source.mode, layers, [Server(0, 0)], worst)
    every = line.setting("save_interval") if line.setting("save") is not None else None
    restart = Restart(
        None if every is None else every / 2,
        min(each.varuna_restart for each in MEASURED),
        max(each.varuna_restart for each in MEASURED),
    )
    servers = servers_of(line.shape, line.pipelines_last)
    hosts = hosts_of(servers, line.server_ranks.size, ranks_per_host)
    host = _host_costs(hosts, source, whole, layers, loses_shards=line.loses_shards)
    return FailureCosts(tuple(rerouted), (pipelines - 1) / pipelines, moved, restart, host)


def _host_costs(
    hosts: Sequence[frozenset[Server]], source: Source, whole: Plan, layers: int, *, loses_shards: bool
) -> HostCosts:
    """What the loss of a host costs; hosts that leave as many servers of each stage are planned for once."""
    sizes = [len(host) for host in hosts]
    costs = HostCosts((min(sizes), max(sizes)))
    if max(sizes) == 1 or whole.job.pipelines == 1:
        return costs
    pipelines = whole.job.pipelines
    kinds: dict[tuple[int, ...], list[DeadServers]] = {}
    fatal = torn = 0
    for host, (exposed, halved) in zip(hosts, lost_with_each(whole.job.servers(), hosts), strict=True):
        dead = whole.job.dead_servers(host)
        if exposed:
            fatal += 1
        elif loses_shards and halved:
            torn += 1
        else:
            kinds.setdefault(dead.counts, []).append(dead)
    plans: list[tuple[DeadServers, Plan]] = []
    unplanned = 0
    for alike in kinds.values():
        try:
            plans.append((alike[0], source.plan(alike[0])))
        except NoPlanError:
            unplanned += len(alike)
    costs = costs._replace(fatal=fatal, torn=torn, unplanned=unplanned)
    if not plans:
        return costs
    rerouted = tuple(
        HostCost(
            tuple(map(str, loss)),
            len(kinds[loss.counts]),
            plan.period,
            whole.period / plan.period,
            plan.throughput,
        )
        for loss, plan in plans
    )
    dead, worst = max(plans, key=lambda each: each[1].period)
    theirs = len({server.pipeline for server in dead})
    return costs._replace(
        rerouted=rerouted,
        pipelines=theirs,
        without_pipelines=1 - theirs / pipelines,
        layers_moved=_moved(whole, source.mode, layers, dead, whole.period / worst.period),
    )


def _moved(whole: Plan, mode: Mode, layers: int, dead: Iterable[Server], rerouted: float) -> float | None:
    """The throughput where the layers of dead servers move to the rest of their pipelines.

    Args:
        whole: the plan in which all servers are alive.
        mode: of plans.
        layers: of the model.
        dead: the servers that are dead.
        rerouted: the throughput by re-routing around them.

    Returns:
        None where re-routing costs little, or nothing can move.
    """
    job = whole.job
    lost = Counter(server.pipeline for server in dead)
    servers = job.pipelines * job.depth
    live, left = servers - lost.total(), {job.depth, *(job.depth - each for each in lost.values())}
    if 1 - rerouted <= MATTERS * lost.total() / servers:
        return None
    if not job.standard or not all(left) or not job.depth <= layers <= most_layers(job.depth) or live > MOST_SERVERS:
        return None
    model = layers_of(job, layers)
    # The others keep their layers, and the pipelines of dead servers are cut among those that are left of them.
    found = make_templates(model, job.depth, job.micro_batches, in_memory=1).by_servers
    templates = Templates(model, {size: found[size] for size in left if size in found})
    total, period = job.pipelines * job.micro_batches, proven_period(model, mode)
    fleet = choose_fleet(templates, live, total, period, min(1, job.pipelines - 1), job.pipelines)
    return None if fleet is None else whole.period * layers / plan_fleet(model, fleet, ONCE, mode).period
