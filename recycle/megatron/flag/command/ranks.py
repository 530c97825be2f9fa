"""Where Megatron puts the ranks of a job: which server a rank belongs to, and which servers a host has."""

from collections.abc import Collection, Sequence

from recycle.job import Server
from recycle.megatron.flag.command.planning import Shape
from recycle.state.shards import assign_shards

PIPELINES_LAST = "--use-tp-pp-dp-mapping"
"""Megatron's option for the order in which the ranks of one pipeline are neighbours; by default, peers are."""


def servers_of(shape: Shape, pipelines_last: bool) -> tuple[Server, ...]:
    """All servers, in the order of their ranks.

    Args:
        shape: of the job.
        pipelines_last: whether ranks count up through the stages of a pipeline first, and not through peers.
    """
    servers = [Server(pipeline, stage) for stage in range(shape.stages) for pipeline in range(shape.pipelines)]
    return tuple(sorted(servers) if pipelines_last else servers)


def hosts_of(servers: Sequence[Server], ranks_per_server: int, ranks_per_host: int) -> list[frozenset[Server]]:
    """The servers that die with each host: those with a rank on it.

    Args:
        servers: in the order of their ranks.
        ranks_per_server: how many ranks each has.
        ranks_per_host: how many ranks run on a host, the first host having the first.
    """
    total = len(servers) * ranks_per_server
    return [
        frozenset(servers[rank // ranks_per_server] for rank in range(first, min(first + ranks_per_host, total)))
        for first in range(0, total, ranks_per_host)
    ]


def exposed_stages(servers: Sequence[Server], hosts: Sequence[frozenset[Server]]) -> list[int]:
    """The stages that lose all their servers with some host.

    Args:
        servers: all of them.
        hosts: the servers that die with each host.
    """
    peers: dict[int, set[Server]] = {}
    for server in servers:
        peers.setdefault(server.stage, set()).add(server)
    return [stage for stage in sorted(peers) if any(peers[stage] <= host for host in hosts)]


def torn_stages(servers: Sequence[Server], hosts: Sequence[frozenset[Server]]) -> list[int]:
    """The stages of which some host has both holders of a shard of a distributed optimizer, and not all servers.

    Args:
        servers: all of them.
        hosts: the servers that die with each host.
    """
    peers: dict[int, set[int]] = {}
    for server in servers:
        peers.setdefault(server.stage, set()).add(server.pipeline)

    def is_torn(stage: int, host: frozenset[Server]) -> bool:
        lost = {server.pipeline for server in host if server.stage == stage}
        return lost < peers[stage] and has_both_holders(lost, len(peers[stage]))

    return [stage for stage in sorted(peers) if any(is_torn(stage, host) for host in hosts)]


def has_both_holders(lost: Collection[int], pipelines: int) -> bool:
    """Whether servers of one stage have a shard of a distributed optimizer that no other server has.

    Args:
        lost: their pipelines.
        pipelines: how many there are.
    """
    return any(set(lost).issuperset(each) for each in assign_shards(pipelines, range(pipelines)))


def unprotected(shape: Shape, dead: Sequence[Server]) -> str:
    """Why a job cannot outlive its servers, whoever starts it; empty if it can.

    Args:
        shape: of the job.
        dead: servers that do no work from the start.
    """
    if dead:
        return "with --recycle-dead everybody must live"
    if shape.pipelines == 1:
        return "with one pipeline there are no peers"
    return ""
