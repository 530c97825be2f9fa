"""The choice of a transport: here, and nowhere else. There is one today."""

from collections.abc import Callable, Collection

from torch.distributed import Store

from recycle.control.view import SOLE, ServerRank, View
from recycle.job import Server
from recycle.runtime.net.gloo.links import GlooPrivateLink
from recycle.runtime.net.gloo.network import GlooNetwork
from recycle.runtime.net.network import DEFAULTS, Network, NetworkOptions, PrivateLink


def connect(
    store: Store,
    view: View,
    server: Server,
    options: NetworkOptions = DEFAULTS,
    rank: ServerRank = SOLE,
    check: Callable[[], None] | None = None,
    partners: Collection[Server] | None = None,
) -> Network:
    """Connect with other live servers of a view; each live server must do the same.

    The ranks of a server each talk to those of the same number in other servers, so they form planes. Only the ranks of
    one server meet across them.

    Args:
        store: where the ranks find each other.
        view: the live servers.
        server: which of them this rank belongs to.
        options: how they meet.
        rank: which of the server's.
        check: raises when this view is over; it is asked while others are waited for here, and in reductions. None
            where views never end.
        partners: whom this rank sends to or receives from, as far as that is known; they must name this one. None for
            all live servers.

    Raises:
        ConnectionLost: one of them did not come.
        ViewBroken: the check raised it.
    """
    others = view.servers if partners is None else partners
    return GlooNetwork(store, view, server, options, rank, check, others)


def connect_pair(
    store: Store, first: bool, options: NetworkOptions, check: Callable[[], None] = lambda: None
) -> PrivateLink:
    """Connect with one other process. One of the two is first, and the other one is not.

    No other thread of the process may connect meanwhile.

    Args:
        store: where they find each other; nobody else uses it.
        first: whether this process is the first.
        options: how they meet.
        check: raises when the other one will not come; it is asked while it is waited for.

    Raises:
        ConnectionLost: the other one did not come.
    """
    return GlooPrivateLink(store, first, options, check)
