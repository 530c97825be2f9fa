"""Rules of shares: who gets the sum of each, who gets what others hold, and how waits for them end."""

import threading
from collections.abc import Sequence

import pytest
import torch

from recycle.job import Server
from recycle.runtime.errors import ViewBroken
from recycle.runtime.net.network import Network, Share
from tests.runtime.net.contract.giving_up import frees
from tests.runtime.net.contract.ranks import Rank
from tests.runtime.net.contract.writing import LARGE, NumberedRule, numbering

RULES: dict[str, NumberedRule] = {}
"""By their names."""

rule = numbering(RULES)

PEERS = tuple(Server(each, 0) for each in range(3))
SIZE = 1000
"""Elements of a share."""


def _holders(peers: Sequence[Server]) -> list[tuple[Server, ...]]:
    """Of each share: two peers, but one where there are no more than two, so that none holds all."""
    return [(*peers[turn:], *peers[:turn])[: min(2, len(peers) - 1)] for turn in range(len(peers))]


def _shares(network: Network, size: int = SIZE) -> list[Share]:
    holders = _holders(network.view.peers(network.server.stage))
    return [Share(slice(turn * size, (turn + 1) * size), each) for turn, each in enumerate(holders)]


def _connect(rank: Rank, peers: Sequence[Server] = PEERS, epoch: int = 0) -> Network:
    rank.server = PEERS[rank.number]
    network = rank.connect(tuple(peers), epoch, partners=())
    network.connect_shares(_holders(peers))
    return network


def _addend(pipeline: int) -> torch.Tensor:
    """Of which the sum depends on the order."""
    return torch.rand(len(PEERS) * SIZE, generator=torch.Generator().manual_seed(pipeline))


def _require_sums(network: Network) -> None:
    """Each share's holders have its sum. What others have there is of no use, and nobody looks at it."""
    peers = network.view.peers(network.server.stage)
    tensor, shares = _addend(network.server.pipeline), _shares(network)
    network.start_shared_sum(tensor, shares).wait()
    total = torch.stack([_addend(each.pipeline) for each in peers]).sum(0)
    for place, holders in shares:
        holds, nothing = network.server in holders, torch.full((SIZE,), -torch.inf)
        most, least = (tensor[place].clone(), -tensor[place]) if holds else (nothing, nothing.clone())
        network.peers.maximum(most)
        network.peers.maximum(least)
        if holds:
            torch.testing.assert_close(tensor[place], total[place])
            assert torch.equal(most, tensor[place])
            assert torch.equal(least.neg(), tensor[place])


@rule(34, count=3)
def holders_get_the_same_bits_of_a_sum(rank):
    """Each share is with two of three peers."""
    network = _connect(rank)
    _require_sums(network)
    network.barrier()


@rule(35, count=3)
def a_spread_reaches_those_without_a_share(rank):
    """They get what its holders have, to the sign of a zero. It may begin anew with what is half spread."""
    network = _connect(rank)
    shares = _shares(network)
    tensor = torch.full((len(PEERS) * SIZE,), torch.nan)
    for turn, (place, holders) in enumerate(shares):
        if rank.server in holders:
            tensor[place] = -float(turn)
    for _ in range(2):
        network.start_spread(tensor, shares).wait()
        assert torch.equal(tensor, -torch.arange(3.0).repeat_interleave(SIZE))
        assert tensor.signbit().all()
    network.barrier()


@rule(36)
def a_start_of_shares_waits_for_nobody(rank):
    """Several sums and spreads may be under way, and are waited for in the order of their start."""
    network = _connect(rank, PEERS[:2])
    shares = _shares(network, LARGE)
    sums, given = (
        [torch.full((2 * LARGE,), float(each)) for each in (1, 2)],
        torch.full((2 * LARGE,), rank.number + 1.0),
    )
    if rank.number == 1:
        rank.hear("started", 0)
    under_way = [*(network.start_shared_sum(each, shares) for each in sums), network.start_spread(given, shares)]
    if rank.number == 0:
        rank.say("started")
    for each in under_way:
        each.wait()
    own = shares[rank.number].place
    assert [float(each) for tensor in sums for each in tensor[own].unique()] == [2, 4]
    assert torch.equal(given, torch.tensor([1.0, 2.0]).repeat_interleave(LARGE))
    network.barrier()


def _give_up(name: str, start: str, number: int) -> None:
    """A rule: a peer that waits for a partner is let go, once the network is given up."""

    def wait(network: Network, _: Rank) -> None:
        getattr(network, start)(torch.zeros(2 * LARGE), _shares(network, LARGE)).wait()

    RULES[name] = NumberedRule(number, frees(wait, lambda network: network.connect_shares(_holders(PEERS[:2]))), 2)


_give_up("a_shared_sum_is_given_up", "start_shared_sum", 37)
_give_up("a_spread_is_given_up", "start_spread", 38)


@rule(39, count=3)
def without_a_peer_no_share_is_summed(rank):
    """If a peer dies, live peers that wait get an error. They sum in the next view, where a share has other holders."""
    network = _connect(rank)
    _require_sums(network)
    network.barrier()
    rank.lose(1, 0, 2)
    giving_up = threading.Timer(0.1, lambda: (rank.alarm.set(), network.unblock()))
    giving_up.start()
    with pytest.raises(ViewBroken):
        network.start_shared_sum(_addend(rank.number), _shares(network)).wait()
    giving_up.join()
    rank.alarm.clear()
    rebuilt = _connect(rank, (PEERS[0], PEERS[2]), 1)
    _require_sums(rebuilt)
    rebuilt.barrier()
