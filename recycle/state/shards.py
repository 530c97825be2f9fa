"""Virtual shards of a stage's optimizer: how its parameters are cut, which peers hold which shard, and what moves.

The layout is that of the launch: as many shards as the full job has pipelines, whichever servers live. A shard is a
unit that some peers hold, so that a death or a return moves shards and cuts nothing anew.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

ALIGNMENT = 64
"""A piece begins at a multiple of so many elements of its parameter, as parameters do in Megatron's buffers.

A processor takes several neighbours in one instruction, and those that are left at the end one by one, which may round
otherwise. Cut like this, each element is handled as if nothing had been cut.
"""

HOLDERS = 2
"""How many peers hold each shard, where there are as many."""


class Piece(NamedTuple):
    """What a shard has of one parameter.

    Attributes:
        parameter: its place among the parameters of the stage.
        start: the first element.
        end: the one behind the last element.
    """

    parameter: int
    start: int
    end: int


class ShardMove(NamedTuple):
    """A shard that a peer gets from another one; peers are named by their pipelines."""

    shard: int
    sender: int
    receiver: int


def cut_layers(layers: Sequence[Sequence[int]], count: int) -> tuple[tuple[Piece, ...], ...]:
    """Cut each layer into equal shares, of which every shard gets one: its part of a layer can move with the layer.

    Args:
        layers: how many elements each parameter has, layer by layer.
        count: how many shards there are.

    Returns:
        The pieces of each shard, in the order of the parameters.
    """
    shards: list[list[Piece]] = [[] for _ in range(count)]
    parameter = 0
    for sizes in layers:
        blocks = [-(-size // ALIGNMENT) for size in sizes]
        edges = [number * sum(blocks) // count for number in range(count + 1)]
        first = 0
        for size, length in zip(sizes, blocks, strict=True):
            for shard, (low, high) in enumerate(pairwise(edges)):
                start, end = max(low - first, 0), min(high - first, length)
                if start < end:
                    shards[shard].append(Piece(parameter, start * ALIGNMENT, min(end * ALIGNMENT, size)))
            first += length
            parameter += 1
    return tuple(map(tuple, shards))


def assign_shards(count: int, live: Collection[int], copies: int = HOLDERS) -> tuple[tuple[int, ...], ...]:
    """Which peers hold each shard, as a function of who is alive: all know it without asking.

    If no peer is dead, the holders of shard r are peer r and others as far from it as can be: launchers put neighbours
    on one host, whose loss then leaves a holder. A live peer keeps what it held then. What the dead held goes to those
    that hold the least, and of these to the farthest from its other holders.

    Args:
        count: how many shards there are, and pipelines in the full job.
        live: the pipelines of the live peers; at least one.
        copies: how many of them hold a shard, if there are as many.

    Returns:
        The holders of each shard; the first one owns it.
    """
    copies = min(copies, count)
    apart = [number * count // copies for number in range(copies)]
    holders = [[peer for peer in ((shard + each) % count for each in apart) if peer in live] for shard in range(count)]
    loads = Counter(peer for chosen in holders for peer in chosen)
    for shard, chosen in enumerate(holders):
        while len(chosen) < min(copies, len(live)):
            near = {peer: min(_steps(peer, each, count) for each in chosen or [shard]) for peer in live}
            taker = min({*live} - {*chosen}, key=lambda peer: (loads[peer], -near[peer], peer))
            chosen.append(taker)
            loads[taker] += 1
    return tuple(map(tuple, holders))


def _steps(one: int, other: int, count: int) -> int:
    """How far apart two peers are, of so many in a ring."""
    return min((one - other) % count, (other - one) % count)


def find_moves(held: Mapping[int, Collection[int]], holders: Sequence[Collection[int]]) -> tuple[ShardMove, ...]:
    """What has to move so that every shard is where it belongs; senders share the work.

    Args:
        held: which shards each live peer holds, all of the same version; every shard is held by somebody.
        holders: who is to hold each shard.
    """
    moves: list[ShardMove] = []
    sent: Counter[int] = Counter()
    for shard, wanted in enumerate(holders):
        sources = [peer for peer in sorted(held) if shard in held[peer]]
        assert sources, f"nobody holds shard {shard}"
        for receiver in wanted:
            if receiver not in sources:
                sender = min(sources, key=lambda peer: (sent[peer], peer))
                sent[sender] += 1
                moves.append(ShardMove(shard, sender, receiver))
    return tuple(moves)
