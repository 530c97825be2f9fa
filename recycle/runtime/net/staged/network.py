"""The network of one view whose servers compute on devices, over one that carries host memory.

Any number of servers can share a device so, because nothing waits on it for anybody else: neither is anything to be
aborted there when a view is over, nor can a kernel of one server keep another's from starting.
"""

from collections.abc import Sequence

from recycle.job import Server
from recycle.runtime.net.network import Group, HostedNetwork, Network
from recycle.runtime.net.shares import SharesOverLinks
from recycle.runtime.net.staged.crossing import Crosses, StagedGroup, StagedLink, is_on_device


class StagedNetwork(HostedNetwork, SharesOverLinks):
    """A Network.

    Args:
        inner: carries host memory.
        crosses: which tensors are not in it.
    """

    def __init__(self, inner: Network, crosses: Crosses = is_on_device) -> None:
        super().__init__(inner)
        self._crosses = crosses
        self.all: Group = StagedGroup(inner.all, crosses)
        self.peers: Group = StagedGroup(inner.peers, crosses)
        self.ranks: Group = StagedGroup(inner.ranks, crosses)

    def group(self, name: str, servers: Sequence[Server], on_host: bool = False) -> StagedGroup:
        """See Network."""
        return StagedGroup(self._host.group(name, servers), self._crosses)

    def link(self, peer: Server) -> StagedLink:
        """See Network."""
        return StagedLink(self._host.link(peer), self._crosses)
