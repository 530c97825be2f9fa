"""How the ranks of a server divide its work, by Megatron's sizes.

A server is all ranks that compute together: those of tensor and context parallelism, and with experts as many of
Megatron's pipelines as its group of experts spans. Its ranks follow each other in Megatron's order, in which tensor
parallelism comes first, then context parallelism and the group of experts.
"""

from collections.abc import Collection, Sequence
from math import lcm
from typing import NamedTuple, Self

from recycle.control.membership.view import ServerRank
from recycle.job import Server
from recycle.megatron.flag.command.planning import Shape
from recycle.megatron.flag.command.refusals import Settings
from recycle.state.shards import assign_shards

PIPELINES_LAST = "--use-tp-pp-dp-mapping"
"""Megatron's option for the order in which the ranks of one pipeline are neighbours; by default, peers are."""


class ServerRanks(NamedTuple):
    """Megatron's sizes inside a stage.

    Attributes:
        tensor: ranks among which the layers without experts are split.
        context: ranks among which sequences are split.
        experts: ranks among which experts are divided, and each of them split.
    """

    tensor: int = 1
    context: int = 1
    experts: int = 1

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Those of a job, by Megatron's settings."""
        tensor, context = (int(settings(f"{each}_parallel_size") or 1) for each in ("tensor_model", "context"))
        split = settings("expert_tensor_parallel_size")
        experts = int(settings("expert_model_parallel_size") or 1) * int(tensor if split is None else split)
        return cls(tensor, context, experts)

    @property
    def size(self) -> int:
        """How many ranks a server has."""
        return lcm(self.tensor * self.context, self.experts)

    @property
    def pipelines(self) -> int:
        """How many of Megatron's pipelines go through a server."""
        return self.size // (self.tensor * self.context)

    def take_pipelines_last(self, stages: int) -> bool:
        """Whether Megatron takes ``PIPELINES_LAST``: as many ranks have to share experts as share a stage.

        Args:
            stages: of a pipeline; with one, the order stays the same.
        """
        return stages == 1 or self.experts == self.tensor * self.context

    def place(self, rank: int) -> tuple[int, ServerRank]:
        """The place of a rank's server among all in their order, and which of its ranks it is."""
        place, number = divmod(rank, self.size)
        return place, ServerRank(number, self.size)

    def pipeline(self, number: int) -> int:
        """Which of the pipelines through its server a rank is in."""
        return number // (self.tensor * self.context)

    def same_layers(self, number: int) -> tuple[int, ...]:
        """The ranks of a server that have the same part of the layers without experts, and sum its gradients."""
        return tuple(range(number % self.tensor, self.size, self.tensor))

    def same_experts(self, number: int) -> tuple[int, ...]:
        """The ranks of a server that have the same part of the same experts, and sum its gradients."""
        return tuple(range(number % self.experts, self.size, self.experts))


ONE_RANK = ServerRanks()
"""Of a server that is one process."""


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


def lost_with_each(servers: Sequence[Server], hosts: Sequence[Collection[Server]]) -> list[tuple[set[int], set[int]]]:
    """Of each host, the stages that lose all their servers, and others that lose both holders of an optimizer's shard.

    Args:
        servers: all of them.
        hosts: the servers that die with each host.
    """
    pipelines = len({server.pipeline for server in servers})
    holders = [set(each) for each in assign_shards(pipelines, range(pipelines))]
    found = []
    for host in hosts:
        lost: dict[int, set[int]] = {}
        for server in host:
            lost.setdefault(server.stage, set()).add(server.pipeline)
        exposed = {stage for stage, homes in lost.items() if len(homes) == pipelines}
        torn = {stage for stage, homes in lost.items() if any(homes.issuperset(each) for each in holders)}
        found.append((exposed, torn - exposed))
    return found


def lost_stages(servers: Sequence[Server], hosts: Sequence[Collection[Server]]) -> tuple[list[int], list[int]]:
    """The same with any of the hosts."""
    exposed, torn = zip(*lost_with_each(servers, hosts), strict=True)
    return sorted(set().union(*exposed)), sorted(set().union(*torn))


def spread_over_hosts(shape: Shape, ranks: ServerRanks, pipelines_last: bool) -> str:
    """How a job is started so that no host has all servers of a stage, or both holders of an optimizer's shard.

    Args:
        shape: of the job.
        ranks: of a server.
        pipelines_last: whether the command line has ``PIPELINES_LAST``.
    """
    may = ranks.take_pipelines_last(shape.stages)
    add = f"add {PIPELINES_LAST}, and " * (may and not pipelines_last and shape.stages > 1)
    return f"{add}start at most {shape.stages if may else shape.pipelines // 2} of its servers on a host"


def unprotected(shape: Shape) -> str:
    """Why a job cannot outlive its servers; empty if it can."""
    return "with one pipeline there are no peers" if shape.pipelines == 1 else ""
