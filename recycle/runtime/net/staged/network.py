"""The network of one view whose servers compute on devices, over one that carries host memory.

Any number of servers can share a device so, because nothing waits on it for anybody else: neither is anything to be
aborted there when a view is over, nor can a kernel of one server keep another's from starting.
"""

from collections.abc import Sequence

from recycle.control.membership.view import ServerRank, View
from recycle.job import Server
from recycle.runtime.net.network import Network
from recycle.runtime.net.staged.crossing import Crosses, StagedGroup, StagedLink, is_on_device
from recycle.runtime.net.stop_line import Line


class StagedNetwork:
    """A Network.

    Args:
        inner: carries host memory.
        crosses: which tensors are not in it.
    """

    def __init__(self, inner: Network, crosses: Crosses = is_on_device) -> None:
        self._inner = inner
        self._crosses = crosses
        self.all = StagedGroup(inner.all, crosses)
        self.peers = StagedGroup(inner.peers, crosses)
        self.ranks = StagedGroup(inner.ranks, crosses)

    @property
    def view(self) -> View:
        """See Network."""
        return self._inner.view

    @property
    def server(self) -> Server:
        """See Network."""
        return self._inner.server

    @property
    def rank(self) -> ServerRank:
        """See Network."""
        return self._inner.rank

    @property
    def secret(self) -> bytes:
        """See Network."""
        return self._inner.secret

    @property
    def one_queue(self) -> bool:
        """See Network."""
        return self._inner.one_queue

    @property
    def line(self) -> Line:
        """See Network."""
        return self._inner.line

    @property
    def ends_are_right(self) -> bool:
        """See Network."""
        return self._inner.ends_are_right

    def group(self, name: str, servers: Sequence[Server], on_host: bool = False) -> StagedGroup:
        """See Network."""
        return StagedGroup(self._inner.group(name, servers), self._crosses)

    def link(self, peer: Server) -> StagedLink:
        """See Network."""
        return StagedLink(self._inner.link(peer), self._crosses)

    def barrier(self) -> None:
        """See Network."""
        self._inner.barrier()

    def unblock(self) -> None:
        """See Network."""
        self._inner.unblock()
