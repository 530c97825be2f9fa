"""What a dead server and a lost host cost a Megatron job, by re-routing and by what could be done instead."""

from collections.abc import Sequence

import msgspec

from recycle.job import DeadServers, Server
from recycle.megatron.flag.command.command_line import CommandLine
from recycle.megatron.flag.command.planning import Source
from recycle.megatron.flag.command.server_ranks import hosts_of, lost_with_each, servers_of
from recycle.plan.plan import Plan
from recycle.study.constants import MEASURED


class FailureCost(msgspec.Struct, frozen=True):
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


class Restart(msgspec.Struct, frozen=True):
    """What a start from a checkpoint costs at each failure, before training goes on.

    Attributes:
        iterations: that are made again in the mean; None for all, where no checkpoint is made.
        least: seconds of standing still, of the quickest that was measured elsewhere.
        most: the same, of the slowest.
    """

    iterations: float | None
    least: float
    most: float


class HostCost(msgspec.Struct, frozen=True):
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


class HostCosts(msgspec.Struct, frozen=True):
    """What the loss of one host costs.

    Attributes:
        servers: the fewest that die with a host, and the most.
        rerouted: by re-routing, for each kind of host; empty where hosts have one server.
        fatal: hosts that have all servers of a stage, so that no peer is left.
        torn: other hosts that have both servers which hold a shard of the optimizer's state.
        unplanned: hosts around which the catalogue has no plan.
        pipelines: that the host whose loss costs the most has servers of; 0 where none is planned for.
        without_pipelines: the throughput without these, against that before, with a smaller batch.
    """

    servers: tuple[int, int]
    rerouted: tuple[HostCost, ...] = ()
    fatal: int = 0
    torn: int = 0
    unplanned: int = 0
    pipelines: int = 0
    without_pipelines: float | None = None


class FailureCosts(msgspec.Struct, frozen=True):
    """What a dead server, and a lost host, cost.

    Attributes:
        failures: by re-routing, for each stage; empty where a stage has one server.
        without_pipeline: the throughput without its pipeline, against that before, with a smaller batch.
        restart: what a start from a checkpoint costs.
        host: what the loss of a host costs.
    """

    failures: tuple[FailureCost, ...]
    without_pipeline: float
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
    failures: list[FailureCost] = []
    for stage in range(stages if pipelines > 1 else 0):
        plan = source.plan([Server(0, stage)])
        failures.append(FailureCost(stage, plan.period, whole.period / plan.period, plan.throughput))
    every = line.setting("save_interval") if line.setting("save") is not None else None
    restart = Restart(
        every / 2 if every else None,
        min(each.varuna_restart for each in MEASURED),
        max(each.varuna_restart for each in MEASURED),
    )
    servers = servers_of(line.shape, line.pipelines_last)
    hosts = hosts_of(servers, line.server_ranks.size, ranks_per_host)
    host = _host_costs(hosts, source, whole, loses_shards=line.loses_shards)
    return FailureCosts(tuple(failures), (pipelines - 1) / pipelines, restart, host)


def _host_costs(hosts: Sequence[frozenset[Server]], source: Source, whole: Plan, *, loses_shards: bool) -> HostCosts:
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
    plans = [(alike[0], source.plan(alike[0])) for alike in kinds.values()]
    planned = kinds if source.catalogue is None else source.catalogue.entries
    unplanned = sum(len(alike) for counts, alike in kinds.items() if counts not in planned)
    costs = msgspec.structs.replace(costs, fatal=fatal, torn=torn, unplanned=unplanned)
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
    dead, _ = max(plans, key=lambda each: each[1].period)
    theirs = len({server.pipeline for server in dead})
    return msgspec.structs.replace(
        costs,
        rerouted=rerouted,
        pipelines=theirs,
        without_pipelines=1 - theirs / pipelines,
    )
