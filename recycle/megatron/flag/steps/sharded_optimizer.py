"""Steps of Megatron's distributed optimizer that lose no shard with a server.

Each shard has two holders among the live peers, as in recycle.state.shards. Both get the sum of its gradient and make
its step, to the same bits, and the first of them gives the stepped parameters to all. The training code steps after a
vote, when all holders have their sums, so no step has to be taken back: if a server dies before all have the
parameters, the others go on with it. A shard that moves meanwhile takes its gradient along.

If parameters are given while the next forward pass begins, no peer knows whether all have them when a view ends.
So they are given again when the next one begins.

Where experts are divided among the ranks of a server, Megatron has an optimizer of its own for them, with which it goes
likewise. Ranks of a server that have the same parameters have different shards: what these give meets in the server.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from recycle.megatron.flag.run.protected import ProtectedExecution
from recycle.megatron.flag.steps.gradients import shares_within, sum_over
from recycle.megatron.flag.steps.shard_optimizers import ROUND, ShardOptimizers, find_distributed
from recycle.megatron.shared.torch_calls import Carrier
from recycle.runtime.errors import ViewBroken
from recycle.runtime.keep.layout import below
from recycle.runtime.net.network import Network, Share, Transfer
from recycle.runtime.recover.restore import gather
from recycle.runtime.step.shared_sums import find_holders

STEP, NORM = "step", "norm"
"""What a step is called among the calls of all servers, and what its norm is, which a server that goes back has."""

VALUE = "value/"
SHARDING = "distrib_optim_sharding_type"
"""How Megatron's metadata call the way in which a distributed optimizer is written."""


class Gather(NamedTuple):
    """A bucket that is under way.

    Attributes:
        parameters: in it.
        end: of the gather.
    """

    parameters: Collection[torch.nn.Parameter]
    end: Transfer


class ParameterGathers:
    """Stepped parameters that one server gives its peers, and gets: at once, or while the next forward pass begins.

    The latter is Megatron's ``--overlap-param-gather``: a module waits for the buckets of its own parameters, and for
    no others. The buckets of the layers that compute first are gathered first.

    Args:
        model: all its chunks, in Megatron's DDP.
        overlaps: whether forward passes wait for what they need; otherwise the caller waits for all.

    Attributes:
        overlaps: see above.
    """

    def __init__(self, model: torch.nn.Module, *, overlaps: bool) -> None:
        self.overlaps = overlaps
        self._network: Network | None = None
        self._under_way: list[Gather] = []
        # That computations on a device come after, and the host has not waited for.
        self._ahead: list[Gather] = []
        for module in model.modules() if overlaps else ():
            own = frozenset(module.parameters(recurse=False))
            if own:
                module.register_forward_pre_hook(partial(self._before, own))

    def enter(self, network: Network) -> None:
        """Forget the gathers of the last view."""
        self._network, self._under_way, self._ahead = network, [], []

    def start(self, buffer: Any, shares: Sequence[Share]) -> None:
        """Start to give all peers what the first holders have of a buffer's parameters; what a holder has stays.

        Args:
            buffer: Megatron's; it must stay as it is until it was waited for.
            shares: of the buffer.
        """
        assert self._network is not None, "it is in no view"
        for bucket in reversed(buffer.buckets):
            place = slice(bucket.offset, bucket.offset + bucket.param_data.numel())
            end = self._network.start_spread(buffer.param_data[place], shares_within(place, shares))
            self._under_way.append(Gather(bucket.params, end))

    def wait(self) -> None:
        """Have all parameters here.

        Raises:
            ViewBroken: a peer is gone; gathers can be started again in the next view.
        """
        due, self._under_way, self._ahead = [*self._ahead, *self._under_way], [], []
        with self._bearing():
            for each in due:
                each.end.wait()

    def _before(self, own: frozenset[torch.nn.Parameter], *_: Any) -> None:
        """A module is about to compute that has some parameters itself."""
        due = [each for each in self._under_way if not own.isdisjoint(each.parameters)]
        if due:
            self._under_way = [each for each in self._under_way if own.isdisjoint(each.parameters)]
            self._precede(due)

    def _precede(self, due: Sequence[Gather]) -> None:
        with self._bearing():
            self._ahead += [each for each in due if not each.end.precede()]

    @contextmanager
    def _bearing(self) -> Iterator[None]:
        """Within the block, a gather that fails is the last one."""
        try:
            yield
        except ViewBroken as error:
            self._under_way, self._ahead = [], []
            assert self._network is not None, "what is under way is so in a view"
            self._network.line.bear(error)


class ShardedOptimizer:
    """The shards of one server; it is KeptShards, and TakenOver.

    Args:
        execution: by which it is known which servers live.
        model: all chunks, in Megatron's DDP.
        optimizer: Megatron's, with distributed optimizers.
        overlaps: whether parameters are given to peers while the next forward pass begins.

    Attributes:
        count: how many there are.
        layers: none: Megatron cuts buckets, and a layer's part of a shard cannot be told apart.
    """

    layers: ClassVar[Sequence[int]] = ()

    def __init__(self, execution: ProtectedExecution, model: Any, optimizer: Any, *, overlaps: bool) -> None:
        self.count = execution.job.pipelines
        self._execution = execution
        self._model = model
        self._settings = optimizer.config
        self._gathers = ParameterGathers(model, overlaps=overlaps)
        self._parts: list[ShardOptimizers] = []
        self._round = 0
        self._is_summed = False
        self._is_reshardable = False
        optimizer.step = self.step
        for chunk in model:
            # So the training code asks for whole parameters.
            chunk.start_param_sync = chunk.disable_forward_pre_hook = self._complete_in_any_view
        for own in find_distributed(optimizer):
            part = ShardOptimizers(own, self.count)
            self._parts.append(part)
            own.sharded_state_dict = partial(self._sharded_state_dict, part, own.sharded_state_dict)
            own.get_parameter_state_dp_zero = partial(self._get_parameter_state_dp_zero, part, own)

    # What Megatron asks for.

    @torch.no_grad()
    def step(self) -> tuple[bool, float, int | None]:
        """What Megatron's optimizers say: that a step was made, the norm, and how many zeros are in the gradient."""
        number = self._round + 1
        (found,) = self._execution.collectives.call(NORM, self._count, across=True)
        norm, zeros = math.sqrt(found[0]), int(found[1])
        # Where a server goes back meanwhile, its round does as well; that of this step stays.
        self._execution.together(STEP, lambda: self._step_and_spread(number, norm))
        self._round = number
        self.begin()
        for part in self._parts:
            part.count_main(self._held_here(first=True))
        return True, norm, zeros if self._settings.log_num_zeros_in_grad else None

    @torch.no_grad()
    def _count(self) -> list[torch.Tensor]:
        """The square of the norm, and how many zeros are in the gradient: each shard's, by its first holder.

        Raises:
            ViewBroken: a server is gone; the next holder of its shards counts these.
        """
        shards, network = self._held_here(first=True), self._execution.network
        gradients = list(chain.from_iterable(part.counted(shards) for part in self._parts))
        found = torch.zeros(2, dtype=torch.float64)
        found[0] = sum(torch.linalg.vector_norm(each).double().square() for each in gradients)
        if self._settings.log_num_zeros_in_grad:
            found[1] = sum(torch.sum(each == 0) for each in gradients)
        network.all.sum(found)
        network.ranks.sum(found)
        return [found]

    # What an iteration asks for.

    def begin(self) -> None:
        """Gradients are none, or of no use any more, and so are shards that are others'."""
        self._is_summed = False
        self._keep_held()

    def know(self) -> None:
        """The gradients of the shards that are here are whole, until they are stepped."""
        self._is_summed = True

    def complete(self) -> None:
        """Have all parameters of the present version here.

        Raises:
            ViewBroken: a peer is gone.
        """
        self._gathers.wait()

    def _complete_in_any_view(self, **_: Any) -> None:
        """The training code is about to look at parameters."""
        while True:
            try:
                self.complete()
                return
            except ViewBroken as error:
                self._execution.recover(error)

    def connect(self, network: Network) -> None:
        """In a view in which shards are shared out, be ready to give parameters, and give those of the last step again.

        Raises:
            ViewBroken: a peer is gone.
        """
        self._gathers.enter(network)
        if self._gathers.overlaps:
            self._start_gathers(network)

    def shares(self, network: Network) -> Mapping[Any, Sequence[Share]]:
        """What each peer has of each of Megatron's buffers.

        Args:
            network: of a view in which shards are shared out.
        """
        holders = find_holders(network, self.count)
        return {buffer: shares for part in self._parts for buffer, shares in part.shares(holders)}

    def _get_parameter_state_dp_zero(
        self,
        part: ShardOptimizers,
        own: Any,
        use_gloo_comm: bool = True,
        empty_data: bool = False,
        return_on_all_ranks: bool = False,
    ) -> dict[Any, Any] | None:
        """All shards of an optimizer, on the first live rank, or on all; see Megatron's method of this name."""
        assert not empty_data, "nothing is loaded while training goes on"
        network = self._execution.network
        peers = network.view.peers(network.server.stage)
        whole = None
        for reader in peers if return_on_all_ranks else peers[:1]:
            for shard, state in gather(self, network, reader).items():
                self.take(shard, state)
            if network.server == reader:
                # Megatron leaves gaps out, looks for parameters behind them, and so writes wrong values.
                whole = part.whole_state(with_gaps=self._is_reshardable)
                for tensor in part.tensors_of(whole):
                    sum_over(self._same(part), tensor)
                self._keep_held()
        return whole if return_on_all_ranks or own.data_parallel_group.rank() == 0 else None

    def _sharded_state_dict(
        self, part: ShardOptimizers, own: Callable[..., dict[str, Any]], *arguments: Any, **keywords: Any
    ) -> dict[str, Any]:
        """What this server writes of an optimizer in format torch_dist: of each shard, its first holder writes it."""
        if (keywords.get("metadata") or {}).get(SHARDING) in DistributedOptimizer.checkpoint_fully_reshardable_formats:
            # All shards come together for it.
            self._is_reshardable = True
            try:
                return own(*arguments, **keywords)
            finally:
                self._is_reshardable = False

        def write(optimizer: Any) -> Any:
            return DistributedOptimizer.sharded_state_dict(optimizer, *arguments, **keywords)

        return part.sharded_state(self._held_here(first=True), write)

    # What recovery asks for.

    @property
    def held(self) -> Collection[int]:
        """See Sharded."""
        return self._parts[0].held

    @property
    def before(self) -> Collection[int]:
        """See Sharded: no step is ever taken back, so there is only the present version of a shard."""
        return self.held

    def give(self, shard: int) -> Mapping[str, torch.Tensor]:
        """See Sharded; with its gradient, if that is about to be stepped."""
        return {
            f"{number}/{name}": each
            for number, part in enumerate(self._parts)
            for name, each in (part.give(shard) | (part.gradient(shard) if self._is_summed else {})).items()
        }

    def take(self, shard: int, state: Mapping[str, torch.Tensor]) -> None:
        """See Sharded."""
        for number, part in enumerate(self._parts):
            part.take(shard, below(f"{number}/", state))

    def pieces(self, shard: int) -> Mapping[str, torch.Tensor]:
        """See KeptShards; without a content where another server owns it."""
        if shard in self._held_here(first=True):
            return self.give(shard)
        return {
            f"{number}/{name}": each
            for number, part in enumerate(self._parts)
            for name, each in part.outline(shard).items()
        }

    def take_pieces(self, shard: int, state: Mapping[str, torch.Tensor]) -> None:
        """See KeptShards."""
        self.take(shard, state)

    def state(self, _: int) -> dict[str, torch.Tensor]:
        """See TakenOver: all but the shards, which are shared out when a view begins."""
        return {ROUND: torch.tensor(self._round), **{f"{VALUE}{name}": each for name, each in self._values()}}

    def adopt(self, _: int, state: Mapping[str, torch.Tensor]) -> None:
        """See TakenOver."""
        for part in self._parts:
            part.keep(())
        self._round = int(state[ROUND])
        for name, each in self._values():
            each.copy_(state[f"{VALUE}{name}"])

    def _values(self) -> Iterator[tuple[str, torch.Tensor]]:
        parameters = ((name, each.detach()) for name, each in self._model.named_parameters())
        return chain(parameters, self._model.named_buffers())

    def _held_here(self, *, first: bool) -> list[int]:
        """The shards that this server holds in the present view, or of which it is the first holder."""
        me, holders = self._execution.server, find_holders(self._execution.network, self.count)
        return [shard for shard, each in enumerate(holders) if me in (each[:1] if first else each)]

    def _keep_held(self) -> None:
        """Forget shards that are others'."""
        held = self._held_here(first=False)
        for part in self._parts:
            part.keep(held)

    def _same(self, part: ShardOptimizers) -> Carrier | None:
        """The ranks of the server that have the same parameters as this one, where there are others."""
        same = self._execution.same_parameters
        return same.experts if part.is_divided else same.layers

    def _step_and_spread(self, number: int, norm: float) -> None:
        """Make the step of the shards that are here, and have each shard's parameters with all peers.

        Args:
            number: of the round.
            norm: of the whole model's gradient.

        Raises:
            ViewBroken: a peer is gone; what is here can be stepped and spread again.
        """
        for part in self._parts:
            part.step(number, norm)
        self._start_gathers(self._execution.network)
        if not self._gathers.overlaps:
            self.complete()

    @torch.no_grad()
    def _start_gathers(self, network: Network) -> None:
        """Start to have the parameters of each shard with all peers, as its first holder has them."""
        holders = find_holders(network, self.count)
        for part in self._parts:
            same = self._same(part)
            for buffer, shares in part.shares(holders):
                values = buffer.param_data
                for place, those in shares:
                    if same is not None and network.server in those:
                        values[place] = torch.cat(same.gather(values[part.part_of(place)]))
                self._gathers.start(buffer, shares)
