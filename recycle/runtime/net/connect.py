"""The choice of a transport: here, and nowhere else. There is one today."""

from collections.abc import Callable

from torch.distributed import Store

from recycle.control.view import View
from recycle.job import Server
from recycle.runtime.net.gloo.links import GlooPrivateLink
from recycle.runtime.net.gloo.network import GlooNetwork
from recycle.runtime.net.network import DEFAULTS, Network, NetworkOptions, PrivateLink


def connect(
    store: Store,
    view: View,
    server: Server,
    options: NetworkOptions = DEFAULTS,
    tensor_rank: int = 0,
    check: Callable[[], None] | None = None,
) -> Network:
    """Connect with all other live servers of a view; each of them must do the same.

    The tensor-parallel ranks of a server each talk to those of the same place in other servers, so they form planes
    that never meet here.

    Args:
        store: where the ranks find each other.
        view: the live servers.
        server: which of them this rank belongs to.
        options: how they meet.
        tensor_rank: the place of this rank in its server.
        check: raises when this view is over; it is asked while a reduction is waited for. None where views never end.

    Raises:
        ConnectionLost: one of them did not come.
    """
    return GlooNetwork(store, view, server, options, tensor_rank, check)


def connect_pair(store: Store, first: bool, options: NetworkOptions) -> PrivateLink:
    """Connect with one other process. One of the two is first, and the other one is not.

    No other thread of the process may connect meanwhile.

    Args:
        store: where they find each other; nobody else uses it.
        first: whether this process is the first.
        options: how they meet.

    Raises:
        ConnectionLost: the other one did not come.
    """
    return GlooPrivateLink(store, first, options)
