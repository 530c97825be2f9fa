"""The network of one view over communicators: all of them made anew for it, and given up with it."""

from collections.abc import Callable, Collection, Sequence

import torch
from torch.distributed import Store

from recycle.control.view import ServerRank, View
from recycle.job import Server
from recycle.runtime.net.network import NetworkOptions
from recycle.runtime.net.ordered.communicators import Communicators, OrderedGroup, OrderedLink
from recycle.runtime.net.ordered.library import Library


class OrderedNetwork:
    """A Network.

    Args:
        library: makes communicators.
        store: where the ranks find each other.
        view: the live servers.
        server: which of them this rank belongs to.
        options: how they meet.
        rank: which of the server's.
        check: raises when this view is over.
        partners: whom this rank sends to or receives from.

    Raises:
        ViewBroken: somebody did not come.
    """

    def __init__(
        self,
        library: Library,
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
        self.one_queue = library.one_queue
        self._communicators = made = Communicators(
            library, store, options, check, f"epoch/{view.epoch}/rank/{rank.number}"
        )
        self._rank = view.rank(server)
        self._device = library.device
        peers = view.peers(server.stage)
        self.all = made.group("all", self._rank, len(view.servers))
        self.peers = made.group(f"stage/{server.stage}", peers.index(server), len(peers))
        self.ranks = made.group_at(f"epoch/{view.epoch}/server/{server}", rank.number, rank.size)
        # All links of all ranks in one order.
        others = sorted({view.rank(each) for each in partners if each != server}, key=self._place_of_link)
        self._links = {view.servers[each]: made.link(self._rank, each) for each in others}
        made.meet()

    def group(self, name: str, servers: Sequence[Server]) -> OrderedGroup:
        """See Network."""
        group = self._communicators.group(name, servers.index(self.server), len(servers))
        self._communicators.meet()
        return group

    def link(self, peer: Server) -> OrderedLink:
        """See Network."""
        if peer not in self._links:
            self._links[peer] = self._communicators.link(self._rank, self.view.rank(peer))
            self._communicators.meet()
        return self._links[peer]

    def barrier(self) -> None:
        """See Network."""
        self.all.sum(torch.zeros(1, device=self._device))

    def unblock(self) -> None:
        """See Network."""
        self._communicators.abort()

    def _place_of_link(self, peer: int) -> tuple[int, int]:
        return min(peer, self._rank), max(peer, self._rank)
