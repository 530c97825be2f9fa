"""The world in which Megatron's code finds itself: one server.

Its default process group holds the ranks of the server and nobody else, so no group of Megatron's can ever hold a dead
server; between servers, the runtime carries everything.
"""

from copy import copy
from typing import Any, NamedTuple

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from recycle.control.membership.addresses import LOOPBACK
from recycle.control.membership.view import SOLE
from recycle.job import Server
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.runtime.net.gloo.devices import share_devices
from recycle.runtime.net.process_groups import make_replaceable_groups


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


def groups_of(groups: Any, place: Place) -> Any:
    """The groups that a stage is built with: those of its server, and its own place in the model.

    Args:
        groups: of the server.
        place: of the stage.
    """
    mine = copy(groups)
    mine.pp = place
    return mine


def join_server(server: Server, depth: int, collectives: RankCollectives | None = None) -> Any:
    """Make the world of one rank, which waits for nobody, and the groups that its model is built with.

    Args:
        server: which server.
        depth: P.
        collectives: of the rank; they carry out what is called in these groups. None for a server of one.
    """
    collectives = collectives or RankCollectives(SOLE)
    make_replaceable_groups(collectives.take_over)
    rank = collectives.rank
    # Megatron makes some twenty groups, and no other process connects to any of them.
    share_devices(LOOPBACK)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=rank.number, world_size=rank.size)
    # The ranks of a server share its layers' tensors.
    parallel_state.initialize_model_parallel(rank.size, create_gloo_process_groups=False)
    parallel_state.set_pipeline_model_parallel_rank(server.stage)
    parallel_state.set_pipeline_model_parallel_world_size(depth)
    model_parallel_cuda_manual_seed(0)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    groups.pp = Place(server.stage, depth)
    groups.embd = None
    return groups
