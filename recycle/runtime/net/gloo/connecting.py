"""How ranks of gloo's groups connect: only those that send to each other, and in a way that can be given up.

A lazy group of gloo's publishes where its rank listens, and connects two ranks when one of them first sends or
receives. Of the two, that with the greater address connects, and the other one waits for it inside of gloo, where
nothing can wake it. So everybody first connects to the ranks that wait for it, and says so in the store; and who has to
wait does so in the store, and goes to gloo when there is nothing left to wait for.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
from torch.distributed import DistError, Store, Work

from recycle.runtime.errors import ConnectionLost
from recycle.runtime.net.gloo.addresses import Address
from recycle.runtime.net.gloo.backend import GlooBackend
from recycle.runtime.net.gloo.sockets import Connections, open_connections
from recycle.runtime.net.gloo.tags import GREETINGS
from recycle.runtime.plain_words import losing, lost

PAUSES = 0.002, 0.05
"""Seconds between two looks at the store: the first pause, and the longest; each is twice the one before."""

PUBLISHED = "0/{}"
"""Where gloo publishes a rank's address, in the store of its group."""


class LazyGroup(NamedTuple):
    """A group that was made and has yet to connect.

    Attributes:
        store: of this group alone.
        backend: this rank's part of it.
        rank: of this process.
        partners: the ranks to connect with; each of them must do the same.
    """

    store: Store
    backend: GlooBackend
    rank: int
    partners: Collection[int]


def connect_groups(groups: Sequence[LazyGroup], patience: timedelta, check: Callable[[], None]) -> None:
    """Connect in some groups at once. Each group is told which connections it has then.

    Args:
        groups: which, and with whom.
        patience: how long to wait for partners that have not come as far as this one, in each of four steps at most.
        check: raises when they will not come; it is asked every now and then.

    Raises:
        ConnectionLost: a partner did not come, or the store is gone.
    """
    try:
        _connect(groups, patience, check)
    except DistError as error:
        raise lost(error, ["the store"]) from error


def _connect(groups: Sequence[LazyGroup], patience: timedelta, check: Callable[[], None]) -> None:
    waiting: list[tuple[LazyGroup, list[int]]] = []
    ends: list[tuple[LazyGroup, Address, list[Address]]] = []
    try:
        for group in groups:
            rank, partners = group.rank, sorted(group.partners)
            own, *addresses = _addresses(group, [rank, *partners], patience, check)
            ends.append((group, own, addresses))
            reached = [each for each, address in zip(partners, addresses, strict=True) if own > address]
            for each in reached:
                _greet(group.backend.send, each, GREETINGS[0], group.backend.names[each])
                group.store.set(f"reached/{rank}/{each}", "")
            waiting.append((group, [each for each in partners if each not in reached]))
        for group, others in waiting:
            names = group.backend.names
            _wait(group.store, {f"reached/{each}/{group.rank}": names[each] for each in others}, patience, check)
            for each in others:
                _greet(group.backend.recv, each, GREETINGS[1], names[each])
    finally:
        found = open_connections()
        for group, own, theirs in ends:
            group.backend.has(Connections(each for each in found if each.here == own or each.there in theirs))


def _greet(start: Callable[[list[torch.Tensor], int, int], Work], partner: int, tag: int, name: str) -> None:
    """Have gloo connect two ranks: it does so before it returns. What is started meets nothing, and is let go of."""
    with losing([name]):
        start([torch.zeros(1)], partner, tag)


def _addresses(group: LazyGroup, ranks: Sequence[int], patience: timedelta, check: Callable[[], None]) -> list[Address]:
    keys = {PUBLISHED.format(each): group.backend.names[each] for each in ranks}
    _wait(group.store, keys, patience, check)
    return [Address.of(bytes(each)) for each in group.store.multi_get(list(keys))]


def _wait(store: Store, keys: Mapping[str, str], patience: timedelta, check: Callable[[], None]) -> None:
    """Wait until there are some keys, each set by the member that is named with it."""
    end = time.monotonic() + patience.total_seconds()
    pause, longest = PAUSES
    # A wait of the store's that expires looks up the names of both its ends, which takes seconds if no answer comes.
    while keys and not store.check(list(keys)):
        check()
        if time.monotonic() > end:
            # Looks at a store that is far away take their time, and the last ones may have come meanwhile.
            if missing := [name for key, name in keys.items() if not store.check([key])]:
                raise ConnectionLost(f"{' and '.join(missing)} did not come to connect")
            return
        time.sleep(pause)
        pause = min(2 * pause, longest)
