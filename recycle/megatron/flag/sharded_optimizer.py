"""Steps of Megatron's distributed optimizer that lose no shard with a server.

Each shard has two holders among the live peers, as in recycle.state.shards. The sum of the gradients is with all peers,
so both holders make the step of a shard, to the same bits, and the first of them gives the stepped parameters to all.
The training code steps after a vote, when all gradients are whole, so no step has to be taken back: where somebody dies
before the parameters are with all, those who are left go on with it.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Any, Protocol

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.optimizer import optimizer as megatron_optimizers
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.transformer.module import param_is_not_shared

from recycle.job import Server
from recycle.megatron.flag.saving import Living
from recycle.megatron.flag.shard_optimizers import ROUND, ShardOptimizers, find_distributed, gradients_of
from recycle.runtime.net.network import Network
from recycle.runtime.recover.sharing import gather
from recycle.state.shards import assign_shards

VALUE = "value/"
SHARDING = "distrib_optim_sharding_type"
"""How Megatron's metadata call the way in which a distributed optimizer is written."""


class Connected(Living, Protocol):
    """What can be done together with whoever is alive, over a network.

    Attributes:
        server: which this is.
    """

    server: Server

    @property
    def network(self) -> Network:
        """Of the present view."""


class ShardedOptimizer:
    """The shards of one server; it is Sharded, and TakenOver.

    Args:
        execution: by which it is known who is alive.
        model: all chunks, in Megatron's DDP.
        optimizer: Megatron's, with one distributed optimizer.
    """

    def __init__(self, execution: Connected, model: Any, optimizer: Any) -> None:
        own = find_distributed(optimizer)
        self._execution = execution
        self._model = model
        self._own = own
        self._shards = ShardOptimizers(own)
        self._round = 0
        optimizer.step = self.step
        self._write = own.sharded_state_dict
        own.get_parameter_state_dp_zero = self.get_parameter_state_dp_zero
        own.sharded_state_dict = self.sharded_state_dict

    # What Megatron asks for.

    @torch.no_grad()
    def step(self) -> tuple[bool, float, int | None]:
        """What Megatron's optimizers say: that a step was made, the norm, and how many zeros are in the gradient."""
        self._round += 1
        model_parallel = parallel_state.get_model_parallel_group()
        counted = [
            gradient
            for parameter, gradient in gradients_of(self._model)
            if param_is_not_shared(parameter) and tensor_parallel.param_is_not_tensor_parallel_duplicate(parameter)
        ]
        norm = megatron_optimizers.get_grad_norm_fp32(counted, grad_stats_parallel_group=model_parallel)
        zeros = None
        if self._own.config.log_num_zeros_in_grad:
            count = torch.stack([each.numel() - torch.count_nonzero(each) for each in counted]).sum()
            torch.distributed.all_reduce(count, group=model_parallel)
            zeros = int(count)
        self._execution.together("step", lambda: self._step_and_spread(norm))
        self._shards.keep(self._held_here(first=False))
        self._shards.count_main(self._held_here(first=True))
        return True, norm, zeros

    def get_parameter_state_dp_zero(
        self, use_gloo_comm: bool = True, empty_data: bool = False, return_on_all_ranks: bool = False
    ) -> dict[Any, Any] | None:
        """All shards together, on the first live peer, or on all; see Megatron's method of this name.

        Raises:
            ViewBroken: somebody is gone.
        """
        assert not empty_data, "nothing is loaded while training goes on"
        network = self._execution.network
        peers = network.view.peers(network.server.stage)
        whole = None
        for reader in peers if return_on_all_ranks else peers[:1]:
            for shard, state in gather(self, network, reader).items():
                self._shards.take(shard, state)
            if network.server == reader:
                whole = self._shards.whole_state()
                self._shards.keep(self._held_here(first=False))
        return whole

    def sharded_state_dict(self, *arguments: Any, **keywords: Any) -> dict[str, Any]:
        """What this server writes in format torch_dist: of each shard, its first holder writes it."""
        if (keywords.get("metadata") or {}).get(SHARDING) in DistributedOptimizer.checkpoint_fully_reshardable_formats:
            # All shards come together for it.
            whole: dict[str, Any] = self._write(*arguments, **keywords)
            return whole

        def write(optimizer: Any) -> Any:
            return DistributedOptimizer.sharded_state_dict(optimizer, *arguments, **keywords)

        return self._shards.sharded_state(self._held_here(first=True), write)

    # What recovery asks for.

    @property
    def count(self) -> int:
        """See Sharded."""
        return self._shards.count

    @property
    def held(self) -> Collection[int]:
        """See Sharded."""
        return self._shards.held

    @property
    def before(self) -> Collection[int]:
        """See Sharded: no step is ever taken back, so there is only the present version of a shard."""
        return self._shards.held

    def give(self, shard: int) -> Mapping[str, torch.Tensor]:
        """See Sharded."""
        return self._shards.give(shard)

    def take(self, shard: int, state: Mapping[str, torch.Tensor]) -> None:
        """See Sharded."""
        self._shards.take(shard, state)

    def state(self, _: int) -> dict[str, torch.Tensor]:
        """See TakenOver: all but the shards, which are shared out when a view begins."""
        return {ROUND: torch.tensor(self._round), **{f"{VALUE}{name}": each for name, each in self._values()}}

    def adopt(self, _: int, state: Mapping[str, torch.Tensor]) -> None:
        """See TakenOver."""
        self._shards.keep(())
        self._round = int(state[ROUND])
        for name, each in self._values():
            each.copy_(state[f"{VALUE}{name}"])

    def _values(self) -> Iterator[tuple[str, torch.Tensor]]:
        parameters = ((name, each.detach()) for name, each in self._model.named_parameters())
        return chain(parameters, self._model.named_buffers())

    def _held_here(self, *, first: bool) -> list[int]:
        """The shards that this server holds in the present view, or of which it is the first holder."""
        network = self._execution.network
        peers = [each.pipeline for each in network.view.peers(network.server.stage)]
        me, holders = network.server.pipeline, assign_shards(self.count, peers)
        return [shard for shard, each in enumerate(holders) if me in (each[:1] if first else each)]

    def _step_and_spread(self, norm: float) -> None:
        """Make the step of the shards that are here, and have each shard's parameters with all peers.

        Raises:
            ViewBroken: somebody is gone; what is here can be stepped and spread again.
        """
        self._shards.step(self._round, norm)
        owned, peers = self._held_here(first=True), self._execution.network.peers
        for number, values in enumerate(self._shards.buffers()):
            # Each byte is one server's, and zero elsewhere. What is here stays as it is until the sum is whole.
            total = torch.zeros_like(values)
            for shard in owned:
                for place in self._shards.places(number, shard):
                    total[place] = values[place]
            peers.sum(total)
            values.copy_(total)
