"""Shares of tensors that go over the links between peers: gloo's, and those that it carries for devices."""

from collections.abc import Iterator, Sequence
from functools import reduce

import torch

from recycle.job import Server
from recycle.runtime.net.network import Network, Reduction, Several, Share, Transfer
from recycle.runtime.net.transfer_key import STATE


class SharesOverLinks:
    """What a Network says of shares, for those whose links do not wait for each other."""

    def connect_shares(self: Network, holders: Sequence[Sequence[Server]]) -> None:
        """See Network."""
        # All servers go through their peers in the same order, so that none waits for one that waits for another.
        for peer in self.view.peers(self.server.stage):
            if peer != self.server:
                self.link(peer)

    def start_shared_sum(self: Network, tensor: torch.Tensor, shares: Sequence[Share]) -> Reduction:
        """See Network."""
        return SharedSum(self, tensor, shares)

    def start_spread(self: Network, tensor: torch.Tensor, shares: Sequence[Share]) -> Transfer:
        """See Network."""
        me, under_way = self.server, Several()
        for place, holders in shares:
            if me == holders[0]:
                others = (each for each in self.view.peers(me.stage) if each not in holders)
                under_way += [self.link(each).send(tensor[place], STATE) for each in others]
            elif me not in holders:
                under_way.append(self.link(holders[0]).receive(tensor[place], STATE))
        return under_way


class SharedSum:
    """A sum of which every share goes to its holders, and stays elsewhere as it was put in; it is a Reduction.

    Every peer sends each share to its first holder, which sends the sum to the others. With two holders for each share,
    a peer sends as many bytes as the tensor has; a sum that all get takes up to twice as many. The first holder adds
    its own part last, to those of the peers before it, backwards and round: as a ring does that begins with it.

    Args:
        network: whose peers are connected.
        tensor: see Network.
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
        under_way = Several(link(first).send(part, STATE) for part, first, _ in parts if first != me)
        coming = [
            Several(link(each).receive(room, STATE) for each, room in zip(before, rooms, strict=True))
            for *_, rooms in own
        ]
        yield
        for (part, others, rooms), transfers in zip(own, coming, strict=True):
            transfers.wait()
            if rooms:
                part += reduce(torch.Tensor.add_, rooms)
            under_way += [link(each).send(part, STATE) for each in others]
        # The sum comes when the first holder has got all that this peer put in, and not before.
        under_way += [link(first).receive(part, STATE) for part, first, others in parts if me in others]
        under_way.wait()
