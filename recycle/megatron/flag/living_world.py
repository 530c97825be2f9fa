"""Torch's ranks as if nobody but the living had been started, for what Megatron's ranks divide among themselves.

A dead rank's part cannot be played where each rank does something of its own, as in a checkpoint that all write.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from recycle.control.view import View
from recycle.job import Server
from recycle.megatron.flag.collectives import Collectives, LivingCollectives, hand_over
from recycle.megatron.shared.torch_calls import Calls
from recycle.runtime.net.process_groups import ReplaceableGroup, numbered_without


@contextmanager
def only_the_living(
    view: View, servers: Sequence[Server], groups: Sequence[ReplaceableGroup], collectives: Collectives
) -> Iterator[None]:
    """For a while, the group of all ranks and those of peers consist of the living, whose calls end with the view.

    Groups inside one pipeline stay as they are: what stage a rank has does not depend on who lives.

    Args:
        view: the present one.
        servers: all, by their rank.
        groups: of at least two ranks.
        collectives: of this server.
    """
    dead = [rank for rank, server in enumerate(servers) if server not in view.servers]
    shrunk = [group for group in groups if len({server.pipeline for server in group.servers}) > 1]
    try:
        with numbered_without(dead, shrunk):
            for group in shrunk:
                calls = Calls(LivingCollectives(collectives, group.servers), group.rank(), group.size())
                group.hand_over(group.servers, calls.carry_out)
            yield
    finally:
        # With the ranks that they have again.
        for group in shrunk:
            hand_over(group, collectives, group.servers)
