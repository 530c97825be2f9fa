"""Sums of which each peer needs some shares only, and tensors of which each has some: as with shards of an optimizer.

Shares go over the links between peers. If all that a rank starts runs in one queue, whole tensors are summed instead.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import torch

from recycle.job import Server
from recycle.runtime.net.network import Network, Reduction, Transfer
from recycle.runtime.net.transfer_key import STATE
from recycle.state.shards import assign_shards


class Share(NamedTuple):
    """A part of a tensor of one dimension.

    Attributes:
        place: in the tensor.
        holders: the peers that have it, or get its sum; the first one adds up, and gives it to the others.
    """

    place: slice
    holders: tuple[Server, ...]


def find_holders(network: Network, count: int) -> list[tuple[Server, ...]]:
    """The peers that hold each shard in a view; all know it without asking.

    Args:
        network: of the view.
        count: how many shards there are.
    """
    stage = network.server.stage
    peers = [each.pipeline for each in network.view.peers(stage)]
    return [tuple(Server(each, stage) for each in holders) for holders in assign_shards(count, peers)]


def connect_peers(network: Network) -> None:
    """Make the links that shares go over; all live servers come here.

    Raises:
        ViewBroken: a peer is gone.
    """
    # All servers go through their peers in the same order, so that none waits for one that waits for another.
    for peer in network.view.peers(network.server.stage):
        if peer != network.server and not network.one_queue:
            network.link(peer)


def start_shared_sum(network: Network, tensor: torch.Tensor, shares: Sequence[Share]) -> Reduction:
    """Start to sum a tensor over the peers, in place, so that the holders of each share get its sum at least.

    Args:
        network: whose peers are connected.
        tensor: of one dimension; it must stay as it is until that was waited for. All wait in one order.
        shares: which do not overlap, the same on all peers and in the same order. If there are none, all get all.
    """
    peers = len(network.view.peers(network.server.stage))
    if network.one_queue or all(len(each.holders) == peers for each in shares):
        return network.peers.start_sum(tensor)
    return SharedSum(network, tensor, shares)


class SharedSum:
    """A sum of which every share goes to its holders, and stays elsewhere as it was put in; it is a Reduction.

    Every peer sends each share to its first holder, which sends the sum to the others. With two holders for each share,
    a peer sends as many bytes as the tensor has; a sum that all get takes up to twice as many. The first holder adds
    its own part last, to those of the peers before it, backwards and round: as a ring does that begins with it.

    Args:
        network: see start_shared_sum.
        tensor: likewise.
        shares: likewise.
    """

    def __init__(self, network: Network, tensor: torch.Tensor, shares: Sequence[Share]) -> None:
        self._work = self._sum(network, tensor, shares)
        next(self._work)

    def wait(self) -> None:
        """See Reduction."""
        next(self._work, None)

    @staticmethod
    def _sum(network: Network, tensor: torch.Tensor, shares: Sequence[Share]) -> Iterator[None]:
        me, peers, link = network.server, network.view.peers(network.server.stage), network.link
        turn = peers.index(me)
        before = [*peers[:turn][::-1], *peers[turn + 1 :][::-1]]
        parts = [(tensor[place], first, others) for place, (first, *others) in shares]
        own = [(part, others, [torch.empty_like(part) for _ in before]) for part, first, others in parts if first == me]
        under_way = [link(first).send(part, STATE) for part, first, _ in parts if first != me]
        coming = [
            [link(each).receive(room, STATE) for each, room in zip(before, rooms, strict=True)] for *_, rooms in own
        ]
        yield
        for (part, others, rooms), transfers in zip(own, coming, strict=True):
            for transfer in transfers:
                transfer.wait()
            if rooms:
                part += reduce(torch.Tensor.add_, rooms)
            under_way += [link(each).send(part, STATE) for each in others]
        # The sum comes when the first holder has got all that this peer put in, and not before.
        under_way += [link(first).receive(part, STATE) for part, first, others in parts if me in others]
        for transfer in under_way:
            transfer.wait()


def spread(network: Network, tensors: Sequence[tuple[torch.Tensor, Sequence[Share]]]) -> None:
    """Give all peers what the first holders have of tensors, in place. What a holder has stays as it is throughout.

    Args:
        network: whose peers are connected.
        tensors: of one dimension, each with its shares, of which all holders have the same bits. These are the same on
            all peers and in the same order, and make up the tensor.

    Raises:
        ViewBroken: a peer is gone; it can be done again in the next view.
    """
    me, under_way, totals = network.server, list[Transfer | Reduction](), list[torch.Tensor]()
    for tensor, shares in tensors:
        if network.one_queue:
            # Each byte is one peer's, and zero elsewhere.
            totals.append(torch.zeros_like(tensor))
            for place, (first, *_) in shares:
                if first == me:
                    totals[-1][place] = tensor[place]
            under_way.append(network.peers.start_sum(totals[-1].view(torch.uint8)))
            continue
        for place, holders in shares:
            if me == holders[0]:
                others = (each for each in network.view.peers(me.stage) if each not in holders)
                under_way += [network.link(each).send(tensor[place], STATE) for each in others]
            elif me not in holders:
                under_way.append(network.link(holders[0]).receive(tensor[place], STATE))
    for each in under_way:
        each.wait()
    for (tensor, _), total in zip(tensors, totals, strict=False):
        tensor.copy_(total)
