"""Who does what Megatron leaves to single ranks: messages to the first and the last one, checkpoints to the first peer.

Where such a rank is dead, its first live peer plays it: the rank of that server that has the same number.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.timers import Timers

from recycle.control.membership.view import SOLE, ServerRank, View
from recycle.job import Server
from recycle.megatron.flag.world.collectives import Collectives, hand_over, several
from recycle.megatron.shared.patching import replace
from recycle.runtime.net.process_groups import ReplaceableGroup, numbered_without


class Roles:
    """The ranks that one plays in the present view.

    Args:
        server: which server this is.
        servers: all, in the order of their ranks.
        rank: which of the server's this is.
    """

    def __init__(self, server: Server, servers: tuple[Server, ...], rank: ServerRank = SOLE) -> None:
        self._server = server
        self._servers = servers
        self._rank = rank
        self._played = {server}
        self._unsaid: list[str] = []
        self._for_others = True

    @contextmanager
    def only_own(self) -> Iterator[None]:
        """For a while, every rank speaks for itself."""
        self._for_others = False
        try:
            yield
        finally:
            self._for_others = True

    def connect(self, view: View) -> None:
        """Take the roles of a view, and say what the last rank may have died of saying."""
        self._played = {self._server}
        if view.peers(self._server.stage)[0] == self._server:
            dead = (each for each in self._servers if each not in view.servers)
            self._played.update(each for each in dead if each.stage == self._server.stage)
        if self.is_last:
            for message in self._unsaid:
                print(message, flush=True)  # noqa: T201 - as Megatron does
        self._unsaid.clear()

    def go_on(self) -> None:
        """All have come as far as this: nothing that went before is unsaid."""
        self._unsaid.clear()

    @property
    def is_last(self) -> bool:
        """Whether this rank speaks as the last one."""
        return self._speaks_as(len(self._servers) * self._rank.size - 1)

    @property
    def rank(self) -> int:
        """As which rank it speaks; the first and the last one speak for all."""
        size = self._rank.size
        for place in (0, len(self._servers) * size - 1):
            if self._speaks_as(place):
                return place
        return self._servers.index(self._server) * size + self._rank.number

    @property
    def pipeline(self) -> int:
        """As which of its peers it speaks; the first one writes the checkpoints."""
        return min(each.pipeline for each in self._played)

    def play(self) -> None:
        """Have Megatron ask for these roles from now on."""
        from megatron.training import training, utils

        own_rank = torch.distributed.get_rank

        @wraps(own_rank)
        def get_rank(group: Any = None) -> int:
            return self.rank if group is None and self._for_others else own_rank(group)

        replace(torch.distributed, "get_rank", get_rank)
        replace(torch.distributed, "broadcast_object_list", broadcast_object_list)
        for module in (training, utils):
            replace(module, "print_rank_last", self._print_rank_last)
        replace(Timers, "log", self._by_last(Timers.log))
        for kind in ("data_parallel", "expert_data_parallel"):
            name, size = f"get_{kind}_rank", getattr(parallel_state, f"get_{kind}_world_size")
            replace(parallel_state, name, self._among_peers(getattr(parallel_state, name), size))

    def _speaks_as(self, rank: int) -> bool:
        place, number = divmod(rank, self._rank.size)
        return number == self._rank.number and self._servers[place] in self._played

    def _print_rank_last(self, message: str) -> None:
        if self.is_last:
            print(message, flush=True)  # noqa: T201 - as Megatron does
        else:
            self._unsaid.append(message)

    def _by_last(self, log: Callable[..., None]) -> Callable[..., None]:
        """What logs by the last rank if no rank is given: also if the one that speaks for it is rank 0, too."""

        @wraps(log)
        def log_timers(timers: Timers, names: list[str], rank: int | None = None, *more: Any, **keywords: Any) -> None:
            if rank is None and self._for_others and self.is_last:
                rank = self.rank
            log(timers, names, rank, *more, **keywords)

        return log_timers

    def _among_peers(self, own: Callable[..., int], size: Callable[..., int]) -> Callable[..., int]:
        pipelines = len({server.pipeline for server in self._servers})

        @wraps(own)
        def rank(*positional: Any, **keywords: Any) -> int:
            found = own(*positional, **keywords)
            if not self._for_others:
                return found
            # As many ranks of each server are in the group, one server after the other.
            of_each = size(*positional, **keywords) // pipelines
            return found - (self._server.pipeline - self.pipeline) * of_each

        return rank


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: dist.ProcessGroup | None = None,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    """Torch's function of this name, for groups whose dead are played by peers.

    Torch asks nobody but the source for its objects, so that whoever plays it would have nothing to say.
    """
    rows: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(rows, object_list, group=group)
    if group_src is None:
        source = 0 if src is None else src
        group_src = source if group is None else dist.get_group_rank(group, source)
    object_list[:] = rows[group_src]


@contextmanager
def only_the_living(
    view: View, servers: Sequence[Server], groups: Sequence[ReplaceableGroup], collectives: Collectives
) -> Iterator[None]:
    """For a while, the group of all ranks and those of peers consist of the living; calls end with the view.

    A dead rank's part cannot be played where each rank does something of its own, as in a checkpoint that all write.

    Groups inside one pipeline have the places that they had: what stage a rank has does not depend on who lives. Those
    inside one server stay as they are, for they live or die whole.

    Args:
        view: the present one.
        servers: of all ranks, by these.
        groups: of at least two ranks.
        collectives: of this server.
    """
    dead = [rank for rank, server in enumerate(servers) if server not in view.servers]
    across = [group for group in groups if len(group.servers) > 1]
    shrunk = [group for group in across if len({server.pipeline for server in group.servers}) > 1]
    try:
        with numbered_without(dead, shrunk):
            for group in across:
                hand_over(group, collectives.carrier_alive(group.servers, several(group.numbers)))
            yield
    finally:
        # Torch's own numbers are back, which calls go by.
        for group in across:
            hand_over(group, collectives.carrier(group.servers, several(group.numbers)))
