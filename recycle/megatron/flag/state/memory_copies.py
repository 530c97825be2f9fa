"""Copies of a job's versions in the memory of keepers: a server's part in them, and what they take."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import torch

from recycle.control.membership.view import ServerRank
from recycle.job import Server
from recycle.megatron.flag.state.rejoin_state import ROOM, RejoinState
from recycle.megatron.flag.steps.steps import Steps
from recycle.runtime.errors import RunError
from recycle.runtime.keep.layout import PARAMETER, count_bytes
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.step.trainee import KeptShards
from recycle.state.channel import HERE
from recycle.state.client import KeeperClient
from recycle.state.directory import KeeperDirectory
from recycle.state.errors import KeeperLost
from recycle.state.host_memory import available_memory
from recycle.state.ladder import MOST
from recycle.state.redundancy import piece_size
from recycle.wording import memory_text

VALUE, COUNTERS = 4, 12
"""Bytes of a parameter or moment in full precision, and of what an optimizer counts for each parameter or shard."""

OPTIMIZER = "optimizer/"
"""What the names of an optimizer's state begin with."""


class KeptVersions(NamedTuple):
    """What of a server's versions is kept: all that somebody needs who has nothing. It is KeptStage.

    Attributes:
        steps: that make them.
        rejoin_state: into them.
    """

    steps: Steps
    rejoin_state: RejoinState

    @property
    def newest(self) -> int:
        """See KeptStage."""
        return self.rejoin_state.newest

    @property
    def undone(self) -> int:
        """See KeptStage."""
        return self.steps.undone

    @property
    def shards(self) -> KeptShards | None:
        """See KeptStage."""
        return self.steps.shards

    def state(self) -> Mapping[str, torch.Tensor]:
        """See KeptStage."""
        return self.rejoin_state.whole()


def announce(steps: Steps, moments: int, server: Server, rank: ServerRank, pipelines: int, endpoint: Endpoint) -> str:
    """What it costs and survives, in a line; all ranks come here, before training begins.

    Args:
        steps: have the version of this rank with which training begins.
        moments: how many the optimizer has of each parameter, once it has stepped.
        server: which.
        rank: of the server.
        pipelines: D.
        endpoint: of the run's store, and this host.

    Raises:
        RunError: this host has not got the memory.
        StoreLost: there is no store.
    """
    directory, sizes = read_directory(endpoint), _sizes(server, rank, _version_bytes(steps, moments))
    redundancy = directory.redundancy

    def keeper_bytes(place: int) -> int:
        stages = directory.stages()[place]
        # Each part is cut up for itself, and its pieces are a byte longer where that does not go evenly.
        uneven = 0 if redundancy.needed == 1 else pipelines * rank.size * len(stages)
        return MOST * (piece_size(sum(sizes[each] for each in stages), redundancy.needed) + uneven)

    for place, home in enumerate(directory.homes):
        limit = keeper_bytes(place)
        if home.address == endpoint.address and limit > (left := _room(endpoint)):
            raise RunError(
                f"--recycle-keep-in-memory: what {home.host} keeps takes {memory_text(limit, 'B')}, and it has "
                f"{memory_text(left, 'B')} left; take hosts with more memory, or leave it off"
            )
    return directory.describe(sum(sizes.values()), max(map(keeper_bytes, range(len(directory.homes)))))


def _room(endpoint: Endpoint) -> int:
    """Bytes that this host has for its keeper: those that are left, and those that it has of an earlier start."""
    held = 0
    with suppress(KeeperLost):
        held = sum(each.size for each in KeeperClient(HERE, endpoint.token, "this host's keeper").copies())
    return available_memory() + held


def read_directory(endpoint: Endpoint) -> KeeperDirectory:
    """Which host keeps what.

    Raises:
        StoreLost: there is no store.
    """
    found = KeeperDirectory.read(endpoint.connect(), endpoint.token)
    assert found is not None, "the first process has told it before it let anybody in"
    return found


def _sizes(server: Server, rank: ServerRank, size: int) -> Mapping[int, int]:
    """The bytes of a version of each stage, on all ranks of a server together; this one's has so many."""
    found: list[tuple[int, int, int]] = [(0, 0, 0)] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, (server.stage, rank.number, size))
    largest: dict[tuple[int, int], int] = {}
    for stage, number, each in found:
        largest[stage, number] = max(each, largest.get((stage, number), 0))
    sizes: Counter[int] = Counter()
    for (stage, _), each in largest.items():
        sizes[stage] += each
    return sizes


def _version_bytes(steps: Steps, moments: int) -> int:
    """The most bytes that any version has, by the first one; before the first step, that has no moments."""
    state, shards = steps.whole.state(steps.versions.newest), steps.shards
    if shards is not None:
        # All of them together have each parameter in full precision, and its moments.
        more = sum((1 + moments) * VALUE * each.numel() for each in state.values()) + shards.count * COUNTERS
    elif any(name.startswith(OPTIMIZER) for name in state):
        more = 0
    else:
        parameters = [each for name, each in state.items() if name.startswith(PARAMETER)]
        more = sum(moments * each.nbytes + COUNTERS for each in parameters)
    return ROOM + count_bytes(state) + more
