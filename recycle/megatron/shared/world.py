"""The world in which Megatron's code finds itself: one server.

Its default process group holds the tensor-parallel ranks of the server and nobody else, so no group of Megatron's
can ever hold a dead server; between servers, the runtime carries everything.
"""

from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from recycle.job import Server


class Place(NamedTuple):
    """Where a server is in its pipeline, in the terms in which Megatron asks a group."""

    stage: int
    depth: int

    def rank(self) -> int:
        """The stage."""
        return self.stage

    def size(self) -> int:
        """The number of stages."""
        return self.depth


def join_server(store: dist.Store, server: Server, depth: int, tensor_rank: int = 0, tensor_parallel: int = 1) -> Any:
    """Make the world of one rank, and the groups that its model is built with.

    Args:
        store: where the ranks of the server find each other.
        server: which server.
        depth: P.
        tensor_rank: the rank's place in the server.
        tensor_parallel: how many ranks the server has.
    """
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(f"server/{server}", store),
        rank=tensor_rank,
        world_size=tensor_parallel,
        timeout=timedelta(seconds=120),
    )
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor_parallel)
    parallel_state.set_pipeline_model_parallel_rank(server.stage)
    parallel_state.set_pipeline_model_parallel_world_size(depth)
    model_parallel_cuda_manual_seed(0)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    groups.pp = Place(server.stage, depth)
    groups.embd = None
    return groups
