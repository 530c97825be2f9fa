"""Torch's ranks as if nobody but the living had been started, for what Megatron's ranks divide among themselves.

A dead rank's part cannot be played where each rank does something of its own, as in a checkpoint that all write.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from recycle.control.membership.view import View
from recycle.job import Server
from recycle.megatron.flag.world.collectives import Collectives, hand_over, several
from recycle.megatron.shared.torch_calls import Carrier
from recycle.runtime.net.process_groups import ReplaceableGroup, numbered_without


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
    across = [group for group in groups if len(group.servers) > 1]
    shrunk = [group for group in across if len({server.pipeline for server in group.servers}) > 1]
    try:
        with numbered_without(dead, shrunk):
            for group in across:
                whose = group.servers, several(group.numbers)
                gather = partial(collectives.gather_alive, *whose)
                hand_over(group, Carrier(gather, partial(collectives.reduce_alive, *whose)))
            yield
    finally:
        # Torch's own numbers are back, which calls go by.
        for group in across:
            hand_over(group, collectives.carrier(group.servers, several(group.numbers)))
