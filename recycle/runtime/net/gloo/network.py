"""The network of one view over gloo.

Its groups are plain backends over a store prefix of their own, so that a view that is left behind needs no teardown.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta

import torch
from torch.distributed import Store

from recycle.control.membership.view import ServerRank, View
from recycle.job import Server
from recycle.runtime.net.gloo.backend import neighbours
from recycle.runtime.net.gloo.connecting import LazyGroup, connect_groups
from recycle.runtime.net.gloo.groups import GlooGroup, make_backend
from recycle.runtime.net.gloo.links import GlooLink
from recycle.runtime.net.gloo.transfers import Waits
from recycle.runtime.net.network import Alone, Group, NetworkOptions
from recycle.runtime.net.shares import SharesOverLinks
from recycle.runtime.net.stop_line import NO_LINE, Line


class GlooNetwork(SharesOverLinks):
    """A Network.

    Args:
        store: where the ranks find each other.
        view: the live servers.
        server: which of them this rank belongs to.
        options: how they meet.
        rank: which of the server's.
        check: raises when this view is over.
        partners: whom this rank sends to or receives from.

    Raises:
        ConnectionLost: somebody did not come.
    """

    def __init__(
        self,
        store: Store,
        view: View,
        server: Server,
        options: NetworkOptions,
        rank: ServerRank,
        check: Callable[[], None],
        partners: Collection[Server],
    ) -> None:
        self.view = view
        self.server = server
        self.rank = rank
        self.secret = options.secret
        self.one_queue = False
        self.ends_are_right = True
        self.line: Line = NO_LINE
        self._store = store
        self._options = options
        self._check = check
        # Groups end with the network, whoever else has let go of them.
        self._groups: list[LazyGroup] = []
        self._named: dict[str, GlooGroup] = {}
        self._waits = Waits()
        everybody = self._make_group("all", view.servers)
        peers = self._make_group(f"stage/{server.stage}", view.peers(server.stage))
        links = {view.rank(each) for each in partners if each != server}
        self._everybody = everybody._replace(partners=links.union(everybody.partners))
        groups = [self._everybody, peers]
        self.ranks: Group = Alone()
        if rank.size > 1:
            ranks = [ServerRank(number, rank.size).of(server) for number in range(rank.size)]
            groups.append(self._make_group_at(f"server/{server}", rank.number, ranks))
        self._connect(groups, options.rebuild_timeout)
        self.all: Group = GlooGroup(everybody.backend, self._check)
        self.peers: Group = GlooGroup(peers.backend, self._check)
        if rank.size > 1:
            self.ranks = GlooGroup(groups[-1].backend, self._check)
        self._links = {view.servers[place]: self._make_link(place) for place in self._everybody.partners}

    def group(self, name: str, servers: Sequence[Server], on_host: bool = False) -> GlooGroup:
        """See Network."""
        if name not in self._named:
            group = self._make_group(name, servers)
            # The others may come from reading or copying their state, which takes as long as that is large.
            self._connect([group], self._options.transfer_timeout)
            self._named[name] = GlooGroup(group.backend, self._check)
        return self._named[name]

    def link(self, peer: Server) -> GlooLink:
        """See Network."""
        if peer not in self._links:
            place = self.view.rank(peer)
            # The other end asks when it has something to send or to receive, and so may be a whole iteration later.
            self._connect([self._everybody._replace(partners=[place], later=True)], self._options.transfer_timeout)
            self._links[peer] = self._make_link(place)
        return self._links[peer]

    def barrier(self) -> None:
        """See Network."""
        self.all.sum(torch.zeros(1))

    def unblock(self) -> None:
        """See Network."""
        for group in list(self._groups):
            group.backend.cut()
        self._waits.give_up()

    def _make_link(self, peer: int) -> GlooLink:
        timeout, rank = self._options.transfer_timeout, self._everybody.rank
        return GlooLink(self._everybody.backend, rank, peer, self.view.epoch, timeout, self._waits)

    def _make_group(self, name: str, servers: Sequence[Server]) -> LazyGroup:
        names = [self.rank.of(each) for each in servers]
        return self._make_group_at(f"rank/{self.rank.number}/{name}", servers.index(self.server), names)

    def _make_group_at(self, name: str, rank: int, names: Sequence[str]) -> LazyGroup:
        backend, partners = make_backend(rank, names, self._options), neighbours(rank, len(names))
        return LazyGroup(f"epoch/{self.view.epoch}/{name}", backend, rank, partners)

    def _connect(self, groups: Sequence[LazyGroup], patience: timedelta) -> None:
        self._groups += groups
        connect_groups(self._store, groups, patience, self._check)
