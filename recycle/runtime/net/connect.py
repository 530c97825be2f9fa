"""The choice of a transport: here, and nowhere else."""

from collections.abc import Callable, Collection

import torch
from torch.distributed import Store

from recycle.control.membership.view import SOLE, ServerRank, View
from recycle.job import Server
from recycle.runtime.net.gloo.links import GlooPrivateLink
from recycle.runtime.net.gloo.network import GlooNetwork
from recycle.runtime.net.meeting_store import within
from recycle.runtime.net.nccl.communicators import Communicators
from recycle.runtime.net.nccl.library import NcclLibrary
from recycle.runtime.net.nccl.network import OrderedNetwork, TwofoldNetwork, plane_of
from recycle.runtime.net.network import DEFAULTS, Network, NetworkOptions, PrivateLink
from recycle.runtime.net.staged.network import StagedNetwork
from recycle.runtime.net.stop_line import Line


def connect(
    store: Store,
    view: View,
    server: Server,
    options: NetworkOptions = DEFAULTS,
    rank: ServerRank = SOLE,
    check: Callable[[], None] | None = None,
    partners: Collection[Server] | None = None,
    line: Callable[[Network], Line] | None = None,
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
        line: makes the line at which the ranks of this server stop together in such a network. None where each stops by
            itself.

    Raises:
        ConnectionLost: one of them did not come.
        ViewBroken: the check raised it.
    """
    others, look = view.servers if partners is None else partners, check or (lambda: None)
    network = GlooNetwork(store, view, server, options, rank, look, others)
    if line is not None and rank.size > 1:
        network.line = line(network)
    if options.transport == "gloo":
        return network
    if options.transport == "staged":
        return StagedNetwork(network)
    library = NcclLibrary(torch.device("cuda", torch.cuda.current_device()), options.transfer_timeout, look)
    made = Communicators(library, within("nccl", store), options, look, plane_of(view, rank))
    return TwofoldNetwork(network, OrderedNetwork(made, view, server, rank, others))


def connect_pair(
    store: Store, first: bool, options: NetworkOptions, check: Callable[[], None] = lambda: None
) -> PrivateLink:
    """Connect with one other process. One of the two is first, and the other one is not.

    Other threads of the process may connect meanwhile. Whatever carries the tensors of networks, private links are
    gloo's, so that they share no queue of a device with the training that goes on beside them.

    Args:
        store: where they find each other; nobody else uses it.
        first: whether this process is the first.
        options: how they meet.
        check: raises when the other one will not come; it is asked while it is waited for.

    Raises:
        ConnectionLost: the other one did not come.
    """
    return GlooPrivateLink(store, first, options, check)
