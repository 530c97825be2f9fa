"""The network of one view over gloo.

Its groups are plain backends over a store prefix of their own, so that a view that is left behind needs no teardown.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import PrefixStore, Store

from recycle.control.view import View
from recycle.job import Server
from recycle.runtime.net.gloo.groups import GlooGroup, make_backend, make_device
from recycle.runtime.net.gloo.links import GlooLink
from recycle.runtime.net.gloo.sockets import Connections, open_sockets
from recycle.runtime.net.gloo.transfers import Waits
from recycle.runtime.net.network import NetworkOptions


class GlooNetwork:
    """A Network.

    Args:
        store: where the ranks find each other.
        view: the live servers.
        server: which of them this rank belongs to.
        options: how they meet.
        tensor_rank: the place of this rank in its server.
        check: raises when this view is over; None where views never end.

    Raises:
        ConnectionLost: somebody did not come.
    """

    def __init__(
        self,
        store: Store,
        view: View,
        server: Server,
        options: NetworkOptions,
        tensor_rank: int,
        check: Callable[[], None] | None,
    ) -> None:
        self.view = view
        self.server = server
        self._store = PrefixStore(f"epoch/{view.epoch}/tensor/{tensor_rank}", store)
        self._options = options
        self._keep = frozenset(options.keep_ports)
        self._check = check or _nothing
        self._device = make_device(options.address)
        self._before = self._sockets = open_sockets()
        # They end with the network, whoever else has let go of them: their end takes its time.
        self._backends: list[tuple[Any, Connections]] = []
        self._unblocked = False
        everybody = self._make_backend("all", view.servers)
        self._waits = Waits()
        self.all = GlooGroup(everybody, self._check)
        rank, timeout = view.rank(server), options.transfer_timeout
        self._links = {
            each: GlooLink(everybody, rank, place, view.epoch, timeout, self._waits)
            for place, each in enumerate(view.servers)
            if each != server
        }
        self.peers = self.group(f"stage/{server.stage}", view.peers(server.stage))

    def group(self, name: str, servers: Sequence[Server]) -> GlooGroup:
        """See Network."""
        return GlooGroup(self._make_backend(name, servers), self._check)

    def link(self, peer: Server) -> GlooLink:
        """See Network."""
        return self._links[peer]

    def barrier(self) -> None:
        """See Network."""
        self.all.sum(torch.zeros(1))

    def unblock(self) -> None:
        """See Network.

        If it has to be done again, a connection came up after its group: then all go that were made since.
        """
        for _, connections in list(self._backends):
            connections.cut()
        if self._unblocked:
            Connections(self._before, open_sockets(), self._keep).cut()
        self._waits.give_up()
        self._unblocked = True

    def _make_backend(self, name: str, servers: Sequence[Server]) -> Any:
        store = PrefixStore(name, self._store)
        backend = make_backend(store, servers.index(self.server), len(servers), self._device, self._options)
        sockets = open_sockets()
        self._backends.append((backend, Connections(self._sockets, sockets, self._keep)))
        self._sockets = sockets
        return backend


def _nothing() -> None:
    """What is checked where views never end."""
