"""Torch's ranks as if nobody but the living had been started, for what Megatron's ranks divide among themselves.

A dead rank's part cannot be played where each rank does something of its own, as in a checkpoint that all write.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from recycle.control.membership.view import View
from recycle.job import Server
from recycle.megatron.flag.world.collectives import Collectives, GroupCollectives, hand_over
from recycle.runtime.net.process_groups import ReplaceableGroup, numbered_without


class LivingCollectives(NamedTuple):
    """The calls of the live ranks of one process group in one view; a Carrier.

    Attributes:
        collectives: of this server.
        servers: all, in the order of their ranks in the group.
        numbers: of the ranks of each that are in it, where it is several.
    """

    collectives: Collectives
    servers: tuple[Server, ...]
    numbers: tuple[int, ...]

    def reduce(self, tensor: torch.Tensor, how: Any) -> torch.Tensor:
        """See Carrier."""
        return self.collectives.reduce_alive(self.servers, self.numbers, tensor, how)

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """See Carrier."""
        return self.collectives.gather_alive(self.servers, self.numbers, tensor)


@contextmanager
def only_the_living(
    view: View, servers: Sequence[Server], groups: Sequence[ReplaceableGroup], collectives: Collectives
) -> Iterator[None]:
    """For a while, the group of all ranks and those of peers consist of the living; calls end with the view.

    Groups inside one pipeline have the places that they had: what stage a rank has does not depend on who lives. Those
    inside one server stay as they are, for they live or die whole.

    Args:
        view: the present one.
        servers: of all ranks, by these.
        groups: of at least two ranks.
        collectives: of this server.
    """
    dead = [rank for rank, server in enumerate(servers) if server not in view.servers]
    carriers = {group: GroupCollectives.of(collectives, group) for group in groups if len(group.servers) > 1}
    shrunk = [group for group in carriers if len({server.pipeline for server in group.servers}) > 1]
    try:
        with numbered_without(dead, shrunk):
            for group, carrier in carriers.items():
                hand_over(group, LivingCollectives(*carrier))
            yield
    finally:
        # Torch's own numbers are back, which calls go by.
        for group, carrier in carriers.items():
            hand_over(group, carrier)
