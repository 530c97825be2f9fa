"""Megatron's distributed optimizer, once for each shard that a server holds, makes the bits of one that is whole."""

import pytest
import torch
from megatron.core import optimizer as megatron_optimizers
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

from harness.gpt_runs import OPTIONS
from harness.group_counting_adam import GroupCountingAdam
from harness.local import launch
from recycle.job import Server
from recycle.megatron.flag.steps.shard_optimizers import (
    ShardOptimizers,
    find_distributed,
    keep_what_optimizers_are_made_of,
)
from recycle.megatron.gpt.model import transformer_config
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.megatron.shared.world import join_server
from recycle.state.shards import assign_shards, find_moves

PEERS, CLIP = 4, 0.5


class Peer:
    """One of the servers of a stage, of which all are in this process.

    Args:
        rank: among all that have the same; None for one that holds all.
        of_each: how many of these each server has.
        dtype: of the model.
    """

    def __init__(self, rank, of_each, dtype):
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        group.counted = (0, 1) if rank is None else (rank, of_each * PEERS)
        torch.manual_seed(0)
        # Shards cut through tensors, and weights and biases are in groups of their own.
        layers = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.LayerNorm(50), torch.nn.Linear(50, 8)).to(dtype)
        # As tied embeddings are, it is alone in its bucket, and there is a gap before it.
        layers[0].weight.shared_embedding = True
        config = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
        self.model = DistributedDataParallel(transformer_config(OPTIONS, 1), config, layers)
        settings = OptimizerConfig(
            optimizer="adam",
            lr=0.1,
            weight_decay=0.1,
            clip_grad=CLIP,
            bf16=dtype == torch.bfloat16,
            use_distributed_optimizer=True,
        )
        optimizer = get_megatron_optimizer(settings, [self.model], use_gloo_process_groups=False)
        (self.own,) = find_distributed(optimizer)
        self.shards = ShardOptimizers(self.own, 1 if rank is None else PEERS)

    def sum(self, number):
        """Have what is held of a round's gradient, and no numbers elsewhere."""
        torch.manual_seed(number)
        for parameter in self.model.parameters():
            parameter.main_grad.copy_(torch.randn(parameter.shape))
        parts = [part for shard in self.shards.held for part in self.shards.gradient(shard).values()]
        sums = [part.clone() for part in parts]
        self.own.buffers[0].grad_data.fill_(torch.nan)
        for part, each in zip(parts, sums, strict=True):
            part.copy_(each)

    def step(self, number, rate):
        """Make a round."""
        for group in self.own.optimizer.param_groups:
            group["lr"] = rate
        self.shards.step(number, 2.0)

    def places(self, shard):
        """Where this rank's part of a shard is."""
        holders = [(Server(each, 0),) for each in range(PEERS)]
        ((_, shares),) = self.shards.shares(holders)
        return [self.shards.part_of(place) for place, (first,) in shares if first.pipeline == shard]

    @property
    def values(self):
        return self.own.buffers[0].param_data


def share_out(peers):
    """As recovery does, and everybody forgets what is others'."""
    holders = assign_shards(PEERS, sorted(peers))
    for move in find_moves({number: peer.shards.held for number, peer in peers.items()}, holders):
        sender = peers[move.sender].shards
        peers[move.receiver].shards.take(move.shard, sender.give(move.shard) | sender.gradient(move.shard))
    return holders


def spread(planes, holders):
    """The owner of each shard gives its parameters to all; whoever holds it has the same."""
    everybody = [peer for peers in planes for peer in peers.values()]
    for peers in planes:
        for shard, (owner, *mirrors) in enumerate(holders):
            for place in peers[owner].places(shard):
                for mirror in mirrors:
                    assert torch.equal(peers[mirror].values[place], peers[owner].values[place])
                for peer in everybody:
                    peer.values[place] = peers[owner].values[place].clone()
        for number, peer in peers.items():
            peer.shards.keep([shard for shard, each in enumerate(holders) if number in each])


def outlined(state):
    return [(name, each.shape, each.dtype) for name, each in state.items()]


def train(dtype, of_each):
    """Two of the peers die when one of the others has stepped already: what comes over is at either round.

    It brings its gradient along.

    Where each server has several ranks with the same parameters, shards stay among those with one number.
    """
    keep_what_optimizers_are_made_of()
    planes = [
        {number: Peer(number * of_each + plane, of_each, dtype) for number in range(PEERS)} for plane in range(of_each)
    ]
    whole = Peer(None, 1, dtype)
    deaths = {3: 1, 5: 2}
    for peers in planes:
        holders = share_out(peers)
    for number in range(1, 7):
        rate = 0.1 / number
        whole.sum(number)
        whole.step(number, rate)
        for peers in planes:
            for peer in peers.values():
                peer.sum(number)
            if number in deaths:
                peers[0].step(number, rate)
                del peers[deaths[number]]
                holders = share_out(peers)
            for peer in peers.values():
                peer.step(number, rate)
        spread(planes, holders)
        for peers in planes:
            assert sum(len(peer.shards.held) for peer in peers.values()) == 2 * PEERS
            for shard, (owner, *_) in enumerate(holders):
                # All know what a shard is made of, whether they hold it or not.
                given = outlined(peers[owner].shards.give(shard))
                assert all(outlined(peer.shards.outline(shard)) == given for peer in peers.values())
            for peer in peers.values():
                # The ends are padded otherwise.
                size = min(len(peer.values), len(whole.values))
                assert torch.equal(peer.values[:size], whole.values[:size]), number
    for with_gaps in (False, True):
        everywhere = (whole, *(peers[0] for peers in planes))
        expected, *found = (each.shards.whole_state(with_gaps=with_gaps) for each in everywhere)
        assert all(each[0].keys() == expected[0].keys() == {(dtype, torch.float32)} for each in found)
        parts = [list(whole.shards.tensors_of(each)) for each in found]
        for state, *others in zip(whole.shards.tensors_of(expected), *parts, strict=True):
            # Each plane has its own shards, and zeros elsewhere.
            assert torch.equal(sum(others), state)
            assert state.count_nonzero() > 0
    (buffer,), (written,) = whole.own.buffers, expected[0].values()
    assert buffer.numel_unpadded < max(end for _, end, _ in buffer.param_index_map.values())
    for parameter, (start, end, _) in buffer.param_index_map.items():
        assert torch.equal(written["param"][start:end].to(dtype), parameter.detach().view(-1))


@pytest.mark.parametrize("counts_in_groups", [False, True])
@pytest.mark.parametrize("of_each", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whoever_holds_which_shard_all_bits_are_those_of_an_optimizer_that_is_whole(dtype, of_each, counts_in_groups):
    def body(member):
        run_on_cpu()
        if counts_in_groups:
            megatron_optimizers.USING_PYTORCH_OPTIMIZER = False
            megatron_optimizers.Adam = megatron_optimizers.distrib_optimizer.Adam = GroupCountingAdam
        join_server(Server(0, 0), 1)
        train(dtype, of_each)

    launch(1, body)
