"""Sums of which each part is needed by some peers only, as where each holds some shards of an optimizer."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from recycle.job import Server
from recycle.runtime.net.network import Network, Transfer
from recycle.runtime.net.transfer_key import SHARE


class Share(NamedTuple):
    """A part of a tensor.

    Attributes:
        place: in the tensor.
        holders: the peers that get its sum; the first one adds up.
    """

    place: slice
    holders: tuple[Server, ...]


class SharedSum:
    """A sum over the peers of a stage that is under way, of which every share goes to its holders; it is a Reduction.

    Every peer sends each share to its first holder, which sends the sum to the others. With two holders for each share a
    peer sends as many bytes as the tensor has; a sum that all get takes up to twice as many. The first holder adds its
    own part last, to those of the peers before it, backwards and round: as a ring does that begins with it.

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
