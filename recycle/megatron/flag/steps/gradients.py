"""The end of an iteration in Megatron's terms; the optimizer is the training code's."""

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import torch
from megatron.core import parallel_state
from megatron.core.distributed.finalize_model_grads import (
    _allreduce_non_tensor_model_parallel_grads as sum_over_tensor_ranks,
)
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup as BucketGroup
from torch.distributed import ReduceOp

from recycle.holding import placed
from recycle.job import Job
from recycle.megatron.flag.steps.loss_table import LossTable
from recycle.megatron.shared.stage import MegatronStage
from recycle.megatron.shared.ties import tie_of
from recycle.megatron.shared.torch_calls import Carrier
from recycle.runtime.errors import RunError, ViewBroken
from recycle.runtime.execute.stage import Redo
from recycle.runtime.net.network import Network, Reduction, Share
from recycle.runtime.step.shared_sums import find_holders, start_shared_sum

OVERLAPS = "recycle_overlaps"
"""The attribute of a model whose sums Megatron's DDP would overlap."""


def take_overlaps_over(models: Sequence[Any]) -> None:
    """Have Megatron's DDP start no sum and no gather itself, and know that it would have summed.

    Its buckets stay as they are.

    Args:
        models: the chunks of a server, wrapped or not.
    """
    for model in models:
        settings = getattr(model, "ddp_config", None)
        if settings is None:
            continue
        # Chunks may share their settings.
        if settings.overlap_grad_reduce:
            settings.overlap_grad_reduce = False
            setattr(model, OVERLAPS, True)
        if model.use_forward_hook:
            if model.remove_forward_pre_hook_handles:
                model.disable_forward_pre_hook(param_sync=False)
            settings.overlap_param_gather = False
            # The training code goes on to turn hooks on and off.
            model.enable_forward_pre_hook = model.disable_forward_pre_hook = lambda **_: None


class SameParameters(NamedTuple):
    """The ranks of a server that have the same part of something; None where that is this rank alone.

    Attributes:
        layers: that of the layers without experts.
        experts: that of the same experts.
    """

    layers: Carrier | None = None
    experts: Carrier | None = None


ALONE = SameParameters()


class GradientBucket(NamedTuple):
    """What is summed at once: a bucket of Megatron's, or all of a buffer that is one.

    Attributes:
        buffer: that it is a part of.
        place: in the buffer.
        parameters: whose gradients it has.
        ranks: of the server that have the same.
    """

    buffer: Any
    place: slice
    parameters: Collection[torch.nn.Parameter]
    ranks: Carrier | None

    @classmethod
    def all_of(cls, model: Any, ranks: SameParameters) -> list[Self]:
        """Those of a chunk, in the order in which they are summed; Megatron's first ones are complete first."""
        buffers = [(each, ranks.layers) for each in model.buffers]
        buffers += [(each, ranks.experts) for each in model.expert_parallel_buffers]
        return [
            cls(buffer, slice(each.offset, each.offset + each.grad_data.numel()), each.params, same)
            for buffer, same in buffers
            for each in buffer.buckets
        ]

    def check(self) -> None:
        """Have Megatron look at the gradients of this rank, as it does before it sums: none may be NaN, for example."""
        settings = self.buffer.ddp_config
        wanted = settings.check_for_nan_in_grad, settings.check_for_large_grads
        if any(wanted):
            here = SimpleNamespace(grad_data=self.buffer.grad_data[self.place])
            BucketGroup.check_grads(SimpleNamespace(buckets=[here]), *wanted)


class LiveGradients:
    """Finalizes gradients as Megatron does, over the live servers: with dead ones, its groups would hang.

    The factors are the same, then come a sum over the peers and those ranks of the server that have the same, that of
    what each tensor-parallel rank has a part of, that of tied embeddings, and the division by the number of tokens
    where the loss is one of tokens.

    Args:
        stages: of the server, rising; their chunks are in Megatron's DDP.
        network: of the server.
        job: for its shape.
        ranks: of the server, with which it sums.
        losses: that are exchanged meanwhile; None where that is done elsewhere, or nothing is reported here.
        shares: of each buffer, of whose sums each peer gets those that it holds; none where each gets all. What is
            elsewhere in a buffer then is of no use.

    Raises:
        RunError: the model is not wrapped.
        ViewBroken: a peer is gone.
    """

    confirms = True

    def __init__(
        self,
        stages: Sequence[MegatronStage],
        network: Network,
        job: Job,
        ranks: SameParameters = ALONE,
        losses: LossTable | None = None,
        shares: Mapping[Any, Sequence[Share]] | None = None,
    ) -> None:
        self._models: list[Any] = [stage.model for stage in stages]
        if not all(hasattr(model, "expert_parallel_buffers") for model in self._models):
            raise RunError("model: gradients are reduced in Megatron's DDP buffers; wrap it in DDP")
        self._stages = stages
        self._network = network
        self._ranks = ranks
        self._losses = losses
        chunks = placed(job, network.server).chunks
        self._sums = {
            chunk: GradientBucket.all_of(model, ranks) for chunk, model in zip(chunks, self._models, strict=True)
        }
        self._shares = shares or {}
        self._under_way: dict[int, list[Reduction]] = defaultdict(list)
        drop = self._drop_shares_of_others if shares else None
        self._tie = tie_of(self._models, network, network.view.peers(0), network.view.peers(job.depth - 1), drop)
        if shares:
            network.connect_shares(find_holders(network, job.pipelines))

    def collect(self) -> None:
        """Nothing: Megatron's buffers add up by themselves."""

    def validate(self) -> Redo:
        """Nothing: the training code steps its optimizer, and knows."""
        return Redo.NOTHING

    def step(self, chunk: int, *, last: bool) -> Redo:
        """Nothing: the training code steps its optimizer when the schedule returns."""
        return Redo.NOTHING

    @property
    def early_sums(self) -> Self | None:
        """This, if Megatron was told to overlap sums."""
        return self if any(hasattr(model, OVERLAPS) for model in self._models) else None

    def expect(self, chunk: int) -> None:
        """See EarlySums: a bucket's sum begins when its gradients are whole, and those of all before it.

        The backward pass raises RunError if one of them was not.
        """
        due, stage = deque(set(each.parameters) for each in self._sums[chunk]), self._stages[[*self._sums].index(chunk)]

        def note(parameter: torch.nn.Parameter) -> None:
            bucket = next((each for each in due if parameter in each), None)
            if bucket is None:
                raise RunError(
                    "--overlap-grad-reduce: a gradient was added to that was whole, as where recomputed layers share a "
                    "parameter; leave it out"
                )
            bucket.remove(parameter)
            while due and not due[0]:
                due.popleft()
                try:
                    self._start_next(chunk)
                except ViewBroken as error:
                    self._network.line.bear(error)

        stage.on_gradient = note

    def start_reduction(self, chunk: int) -> None:
        """See StageUpdate."""
        while len(self._under_way[chunk]) < len(self._sums[chunk]):
            self._start_next(chunk)

    def reduce(self, chunk: int, *, last: bool) -> None:
        """See StageUpdate: the training code steps all chunks of a server together."""
        if last:
            self._finalize()

    def _finalize(self) -> None:
        """Give every live server of the stage the gradient of the whole batch, or its shares of that."""
        last = self._stages[-1]
        if self._losses is not None:
            self._losses.start(self._network, last.take_results(), last.micro_batches)
        for chunk in self._sums:
            self.start_reduction(chunk)
        for chunk, buckets in self._sums.items():
            for bucket, each in zip(buckets, self._under_way.pop(chunk), strict=True):
                each.wait()
                shares, me = self._shares_of(bucket), self._network.server
                for place in [place for place, holders in shares if me in holders] or [slice(None)]:
                    sum_over(bucket.ranks, bucket.buffer.grad_data[bucket.place][place])
        if self._losses is not None:
            self._losses.start_totals()
        config = last.config
        if config.tensor_model_parallel_size > 1:
            tensor_ranks = parallel_state.get_tensor_model_parallel_group()
            sum_over_tensor_ranks(self._models, config, tensor_ranks)
        if self._tie is not None:
            self._tie.reduce()
        if config.calculate_per_token_loss:
            tokens = last.tokens.to("cpu", torch.float64)
            self._network.all.sum(tokens)
            sum_over(self._ranks.layers, tokens)
            for buffer in {each.buffer: None for each in chain.from_iterable(self._sums.values())}:
                buffer.scale_gradients(1.0 / max(1.0, tokens.item()))
        if self._losses is not None:
            self._losses.finish()

    def _start_next(self, chunk: int) -> None:
        """Start the sum of the first bucket of a chunk of which that was not done."""
        bucket = self._sums[chunk][len(self._under_way[chunk])]
        bucket.check()
        gradients, factor = bucket.buffer.grad_data[bucket.place], factor_of(bucket.buffer)
        if factor != 1.0:
            gradients *= factor
        self._under_way[chunk].append(start_shared_sum(self._network, gradients, self._shares_of(bucket)))

    def _shares_of(self, bucket: GradientBucket) -> list[Share]:
        return shares_within(bucket.place, self._shares.get(bucket.buffer, ()))

    def _drop_shares_of_others(self, weight: torch.nn.Parameter) -> None:
        """Leave no gradient of a parameter where another peer is the first holder."""
        for buffer, shares in self._shares.items():
            if weight in buffer.param_index_map:
                start, end, _ = buffer.param_index_map[weight]
                for place, (first, *_) in shares:
                    if first != self._network.server:
                        buffer.grad_data[max(place.start, start) : min(place.stop, end)] = 0


def shares_within(bucket: slice, shares: Sequence[Share]) -> list[Share]:
    """Those of a bucket, of the shares of its buffer: Megatron cuts each bucket into shards of its own."""
    start, end = bucket.start, bucket.stop
    return [
        Share(slice(place.start - start, place.stop - start), holders)
        for place, holders in shares
        if start <= place.start < end
    ]


def factor_of(buffer: Any) -> float:
    """What a gradient in one of DDP's buffers is multiplied by, of which there is a sum then.

    Megatron may have the mean made in its place.
    """
    ddp, factor = buffer.ddp_config, float(buffer.gradient_scaling_factor)
    return factor / buffer.data_parallel_world_size if ddp.average_in_collective else factor


def sum_over(ranks: Carrier | None, tensor: torch.Tensor) -> None:
    """Sum a tensor over some ranks of the server, in place; None where there is no other one than this."""
    if ranks is not None:
        tensor.copy_(ranks.reduce(tensor, ReduceOp.SUM))
