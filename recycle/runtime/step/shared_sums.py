"""Sums of which each peer needs some shares only, and tensors of which each has some: as with shards of an optimizer.

Shares go over links. If all that a rank starts runs in one queue, they go the way of a whole sum.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from recycle.job import Server
from recycle.runtime.net.network import Network, Reduction, Transfer
from recycle.runtime.net.transfer_key import SHARE


class Share(NamedTuple):
    """A part of a tensor of one dimension.

    Attributes:
        place: in the tensor.
        holders: the peers that have it, or get its sum; the first one adds up.
    """

    place: slice
    holders: tuple[Server, ...]


class SharedSum:
    """A sum over the peers of a stage that is under way, of which every share goes to its holders; it is a Reduction.

    Every peer sends each share to its first holder, which sends the sum to the others. With two holders for each share,
    a peer sends as many bytes as the tensor has; a sum that all get takes up to twice as many. The first holder adds
    its own part last, to those of the peers before it, backwards and round: as a ring does that begins with it.

    Elsewhere a share stays as this peer put it in.

    Args:
        network: with a link between any two of the peers.
        tensor: of one dimension; it must stay as it is until the sum was waited for, which is made in place.
        shares: which do not overlap, the same on all peers and in the same order.
    """

    def __init__(self, network: Network, tensor: torch.Tensor, shares: Sequence[Share]) -> None:
        me = network.server
        peers = network.view.peers(me.stage)
        turn = peers.index(me)
        before = [*peers[:turn][::-1], *peers[turn + 1 :][::-1]]
        self._network = network
        self._sent: list[Transfer] = []
        self._mirrored: list[tuple[Server, torch.Tensor]] = []
        self._own: list[tuple[torch.Tensor, list[tuple[torch.Tensor, Transfer]], Sequence[Server]]] = []
        for place, (first, *mirrors) in shares:
            part = tensor[place]
            if first == me:
                room = [(each, torch.empty_like(part)) for each in before]
                coming = [(other, network.link(each).receive(other, SHARE)) for each, other in room]
                self._own.append((part, coming, mirrors))
                continue
            self._sent.append(network.link(first).send(part, SHARE))
            if me in mirrors:
                self._mirrored.append((first, part))

    def wait(self) -> None:
        """See Reduction."""
        link, sent = self._network.link, self._sent
        for part, coming, mirrors in self._own:
            total = None
            for other, transfer in coming:
                transfer.wait()
                total = other if total is None else total.add_(other)
            if total is not None:
                part.add_(total)
            sent += [link(each).send(part, SHARE) for each in mirrors]
        # The sum comes when the holder has got all that this peer put in, and not before.
        for each in [*sent, *(link(first).receive(part, SHARE) for first, part in self._mirrored)]:
            each.wait()


def connect_peers(network: Network) -> None:
    """Make the links to all peers that shares go over; all live servers come here.

    Raises:
        ViewBroken: a peer is gone.
    """
    if not network.one_queue:
        # All go through their peers in the same order, so that nobody waits for somebody who waits for another one.
        for peer in network.view.peers(network.server.stage):
            if peer != network.server:
                network.link(peer)


def start_shared_sum(network: Network, tensor: torch.Tensor, shares: Sequence[Share]) -> Reduction:
    """Start to sum a tensor over the peers, in place, so that at least the holders of each share get its sum.

    Args:
        network: of the view.
        tensor: see SharedSum.
        shares: likewise.
    """
    if network.one_queue:
        return network.peers.start_sum(tensor)
    return SharedSum(network, tensor, shares)


def spread(network: Network, tensor: torch.Tensor, shares: Sequence[Share]) -> None:
    """Give all peers each share of a tensor, in place. What a holder has stays as it is throughout.

    Args:
        network: of the view.
        tensor: of one dimension; all holders of a share have the same bits.
        shares: of the whole tensor, the same on all peers and in the same order.

    Raises:
        ViewBroken: a peer is gone; it can be done again in the next view.
    """
    me, under_way = network.server, list[Transfer | Reduction]()
    if network.one_queue:
        # Each byte is one peer's, and zero elsewhere.
        total = torch.zeros_like(tensor)
        for place, (first, *_) in shares:
            if first == me:
                total[place] = tensor[place]
        network.peers.sum(total.view(torch.uint8))
        tensor.copy_(total)
        return
    for place, holders in shares:
        if me == holders[0]:
            others = (each for each in network.view.peers(me.stage) if each not in holders)
            under_way += [network.link(each).send(tensor[place], SHARE) for each in others]
        elif me not in holders:
            under_way.append(network.link(holders[0]).receive(tensor[place], SHARE))
    for each in under_way:
        each.wait()
