"""Sums of which a peer needs some shares only, and tensors of which each has some: as with shards of an optimizer."""

from collections.abc import Sequence

import torch

from recycle.job import Server
from recycle.runtime.net.network import Network, Reduction, Several, Share
from recycle.state.shards import assign_shards


def find_holders(network: Network, count: int) -> list[tuple[Server, ...]]:
    """The peers that hold each shard in a view; all know it without asking.

    Args:
        network: of the view.
        count: how many shards there are.
    """
    stage = network.server.stage
    peers = [each.pipeline for each in network.view.peers(stage)]
    return [tuple(Server(each, stage) for each in holders) for holders in assign_shards(count, peers)]


def start_shared_sum(network: Network, tensor: torch.Tensor, shares: Sequence[Share]) -> Reduction:
    """Start to sum a tensor over the peers, in place, so that the holders of each share get its sum at least.

    Args:
        network: whose shares are connected.
        tensor: of one dimension; it must stay as it is until that was waited for. All wait in one order.
        shares: which do not overlap, the same on all peers and in the same order. If there are none, all get all.
    """
    peers = len(network.view.peers(network.server.stage))
    if all(len(each.holders) == peers for each in shares):
        return network.peers.start_sum(tensor)
    return network.start_shared_sum(tensor, shares)


def spread(network: Network, tensors: Sequence[tuple[torch.Tensor, Sequence[Share]]]) -> None:
    """Give all peers what the first holders have of tensors, in place. What a holder has stays as it is throughout.

    Args:
        network: whose shares are connected.
        tensors: of one dimension, each with its shares, of which all holders have the same bits. These are the same on
            all peers and in the same order, and make up the tensor.

    Raises:
        ViewBroken: a peer is gone; it can be done again in the next view.
    """
    Several(network.start_spread(*each) for each in tensors).wait()
