"""How ranks of gloo's groups connect: only those that send to each other, and in a way that can be given up.

A lazy group of gloo's publishes where its rank listens, and connects two ranks when one of them first sends or
receives. Of the two, that with the greater address connects, and the other one waits for it inside of gloo, where
nothing can wake it. So everybody first connects to the ranks that wait for it, and says so in the store; and who has to
wait does so in the store, and goes to gloo when there is nothing left to wait for.

When its partners have connected, a rank listens no longer (``gloo/listeners.py``). For a partner that comes later it
does so again, and says once more where.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import NamedTuple

import torch
from torch.distributed import DistError, Store, Work

from recycle.runtime.errors import ConnectionLost
from recycle.runtime.net.gloo.backend import GlooBackend
from recycle.runtime.net.gloo.sockets import Address, Connections, Sockets
from recycle.runtime.net.gloo.tags import GREETINGS
from recycle.runtime.net.meeting_store import look
from recycle.runtime.plain_words import losing, lost

PAUSES = 0.002, 0.05
"""Seconds between two looks at the store: the first pause, and the longest; each is twice the one before."""

AGAIN = 1.0
"""Seconds of waiting after which a rank says again what it has said: a stranger may have taken it away."""


class LazyGroup(NamedTuple):
    """A group that was made and has yet to connect.

    Attributes:
        name: what its keys in the store begin with, and no other group's.
        backend: this rank's part of it.
        rank: of this process.
        partners: the ranks to connect with; each of them must do the same.
        later: whether it has connected to others before.
    """

    name: str
    backend: GlooBackend
    rank: int
    partners: Collection[int]
    later: bool = False

    @property
    def addresses(self) -> dict[str, int]:
        """The partners, by the keys where they say where they listen."""
        return {self.address(each, self.rank): each for each in sorted(self.partners)}

    def address(self, rank: int, partner: int) -> str:
        """The key where a rank says where it listens for another one."""
        return f"{self.name}/address/{rank}/{partner}" if self.later else f"{self.name}/address/{rank}"

    def reached(self, rank: int, partner: int) -> str:
        """The key where a rank says that it has connected to another one."""
        return f"{self.name}/reached/{rank}/{partner}"


def connect_groups(store: Store, groups: Sequence[LazyGroup], patience: timedelta, check: Callable[[], None]) -> None:
    """Connect in some groups at once. Each group is told which connections it has then.

    Requests to the store are few, as all members of a view make theirs at the same time: what concerns all groups and
    partners goes into one.

    Args:
        store: where their ranks find each other.
        groups: which, and with whom.
        patience: how long to wait for partners that have not come as far as this one, in each of two steps at most.
        check: raises when they will not come; it is asked every now and then.

    Raises:
        ConnectionLost: a partner did not come, or the store is gone.
    """
    try:
        with ExitStack() as listeners:
            for group in groups:
                listeners.enter_context(group.backend.listener.open())
            _connect(store, groups, patience, check)
    except DistError as error:
        raise lost(error, ["the store"]) from error


def _connect(store: Store, groups: Sequence[LazyGroup], patience: timedelta, check: Callable[[], None]) -> None:
    ends: list[tuple[LazyGroup, Address, list[Address]]] = []
    waiting: list[tuple[LazyGroup, int]] = []
    reached: list[str] = []
    try:
        said = _tell(store, groups)
        _learn(store, groups, said, patience, check)
        for group in groups:
            directory, rank, names = group.backend.directory, group.rank, group.backend.names
            own, *addresses = [Address.of(directory.address(each)) for each in (rank, *group.addresses.values())]
            ends.append((group, own, addresses))
            for each, address in zip(group.addresses.values(), addresses, strict=True):
                if own > address:
                    _greet(group.backend.send, each, GREETINGS[0], names[each])
                    reached.append(group.reached(rank, each))
                else:
                    waiting.append((group, each))
        said |= _write(store, dict.fromkeys(reached, b""))
        keys = {group.reached(each, group.rank): group.backend.names[each] for group, each in waiting}
        _await(store, keys, said, patience, check)
        for group, each in waiting:
            _greet(group.backend.recv, each, GREETINGS[1], group.backend.names[each])
    finally:
        found = Sockets.look()
        for group, own, theirs in ends:
            mine = (each for each in found.connections if each.here == own or each.there in theirs)
            group.backend.has(Connections(mine))
            if own in found.listening:
                group.backend.listener.is_at(*found.listening[own])


def _tell(store: Store, groups: Sequence[LazyGroup]) -> dict[str, bytes]:
    """Say where this rank listens."""
    own = {each.name: each.backend.directory.address(each.rank) for each in groups}
    return _write(
        store, {each.address(each.rank, partner): own[each.name] for each in groups for partner in each.partners}
    )


def _learn(
    store: Store,
    groups: Sequence[LazyGroup],
    said: Mapping[str, bytes],
    patience: timedelta,
    check: Callable[[], None],
) -> None:
    """Have gloo know where the partners listen."""
    keys = {key: (group, each) for group in groups for key, each in group.addresses.items()}
    names = {key: group.backend.names[each] for key, (group, each) in keys.items()}
    addresses = _await(store, names, said, patience, check)
    for (group, each), address in zip(keys.values(), addresses, strict=True):
        group.backend.directory.learn(each, address)


def _write(store: Store, values: dict[str, bytes]) -> dict[str, bytes]:
    if values:
        store.multi_set(list(values), list(values.values()))  # type: ignore[attr-defined]  # the stubs lack it
    return values


def _greet(start: Callable[[list[torch.Tensor], int, int], Work], partner: int, tag: int, name: str) -> None:
    """Have gloo connect two ranks: it does so before it returns. What is started meets nothing, and is let go of."""
    with losing([name]):
        start([torch.zeros(1)], partner, tag)


def _await(
    store: Store,
    keys: Mapping[str, str],
    said: Mapping[str, bytes],
    patience: timedelta,
    check: Callable[[], None],
) -> list[bytes]:
    """Wait for the values of some keys, each set by the member that is named with it.

    Args:
        store: where they are.
        keys: which, with the members' names.
        said: what this rank has said there itself.
        patience: how long to wait.
        check: raises when they will not come.

    Raises:
        ConnectionLost: a member has not come.
    """
    again = time.monotonic() + AGAIN
    end = time.monotonic() + patience.total_seconds()
    pause, longest = PAUSES
    found: list[bytes] | None = []
    # A wait of the store's that expires looks up the names of both its ends, which takes seconds if no answer comes.
    while keys and not (found := look(store, list(keys))):
        check()
        if time.monotonic() > end:
            # Looks at a store that is far away take their time, and the last ones may have come meanwhile.
            if missing := [name for key, name in keys.items() if not store.check([key])]:
                raise ConnectionLost(f"{' and '.join(missing)} did not come to connect")
            continue
        if time.monotonic() > again:
            again += AGAIN
            for key, value in said.items():
                store.compare_set(key, b"", value)  # type: ignore[arg-type]  # the stubs say str
        time.sleep(pause)
        pause = min(2 * pause, longest)
    assert found is not None, "it has looked until they were there"
    return found
