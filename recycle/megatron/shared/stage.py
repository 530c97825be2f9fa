"""A Megatron model chunk as a stage that the runtime can run."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from megatron.core.pipeline_parallel import schedules
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.utils import get_model_config

from recycle.megatron.shared.delayed_weights import Delayed, DelayedModules, add_up_always
from recycle.megatron.shared.weight_queue import Owed, add_weight_gradients, queued_weight_gradients
from recycle.megatron.shared.world import Place
from recycle.runtime.device import numbers
from recycle.runtime.errors import ViewBroken
from recycle.runtime.execute.seeds import seed_of, seeded
from recycle.runtime.execute.stage import Held, MicroBatch, TensorSpec

OnGradient = Callable[[torch.nn.Parameter], None]
ForwardStep = Callable[[Iterator[Any], torch.nn.Module], tuple[torch.Tensor, Callable[..., Any]]]

# Megatron's seeds are small numbers to which it adds offsets.
SEEDS = 2**31


class Data(Protocol):
    """Where a stage takes the data of micro-batches from, as the iterator that Megatron's forward step reads.

    The iterator is None on a stage that reads no data. It is asked for before dropout is seeded, so reading may draw
    random numbers.
    """

    def training(self, micro_batch: MicroBatch) -> Iterator[Any] | None:
        """The data of a micro-batch that is trained on."""

    def held_out(self, micro_batch: MicroBatch) -> Iterator[Any] | None:
        """The data of a micro-batch that the model is evaluated on."""


class ChunkContext(NamedTuple):
    """What F leaves for I."""

    input: torch.Tensor | None
    output: torch.Tensor


class OwedWeights(NamedTuple):
    """What I leaves for W, of Megatron's own layers and of Transformer Engine's."""

    own: list[Owed]
    delayed: list[Delayed]

    def tensors(self) -> Iterator[torch.Tensor]:
        """What it holds."""
        for each in self.own:
            yield from (each.grad_output, each.input)
        for left in self.delayed:
            yield from left.tensors


class MegatronStage:
    """A model chunk of Megatron, run one micro-batch at a time.

    Args:
        model: the chunk, wrapped or not; it knows its configuration.
        place: which stage of how many.
        shape: of the hidden states on this rank: (sequence, micro-batch size, hidden).
        micro_batches: see below.
        forward_step: Megatron's ``forward_step_func``.
        data: what the forward step reads.
        seed: of dropout.
        shares_losses: whether the losses are told to all peers; otherwise the reports of the loss function stay here
            until ``take_results`` is called.

    Attributes:
        model: see above.
        config: Megatron's configuration of it.
        micro_batches: M of the full job, or the length of a row of its batch, by which Megatron divides each loss;
            where batches grow, that of the present one.
        tokens: how many tokens the loss functions counted, where they count them.
        on_gradient: told by the next B or W of each parameter whose gradient it has made whole, as soon as it is, if
            nothing is added later in that instruction; None where nothing wants to know.
    """

    cannot_split = ""

    def __init__(
        self,
        model: torch.nn.Module,
        place: Place,
        shape: tuple[int, ...],
        micro_batches: int,
        forward_step: ForwardStep,
        data: Data,
        seed: int = 0,
        shares_losses: bool = True,
    ) -> None:
        self.model = model
        self.config = config = get_model_config(model)
        device = next(model.parameters()).device
        spec = TensorSpec(shape, config.pipeline_dtype, device)
        self.input = spec if place.stage > 0 else None
        self.output = spec if place.stage < place.depth - 1 else None
        self._stage = place.stage
        self.micro_batches = micro_batches
        self._forward_step = forward_step
        self._data = data
        self._seed = seed
        self._shares_losses = shares_losses
        self._random = config.hidden_dropout > 0 or config.attention_dropout > 0
        self._contexts: dict[MicroBatch, ChunkContext] = {}
        self._owed: dict[MicroBatch, OwedWeights] = {}
        self._delayed = DelayedModules(model)
        add_up_always(model)
        self._results: dict[MicroBatch, Any] = {}
        # Of which iteration the parameters have seen a micro-batch.
        self._seen: int | None = None
        self.on_gradient: OnGradient | None = None
        self.tokens = torch.zeros([], dtype=torch.int, device=device)

    def forward(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """Run the chunk by Megatron's own forward step."""
        source = None if received is None else received.requires_grad_()
        data = self._data.training(micro_batch)
        if not self._random:
            output = self._run(micro_batch, source, data)
        else:
            seed = seed_of(self._seed, micro_batch, self._stage) % SEEDS
            with seeded(seed):
                model_parallel_cuda_manual_seed(seed)
                output = self._run(micro_batch, source, data)
        self._contexts[micro_batch] = ChunkContext(source, output)
        if self.output is None:
            return None
        message = output.detach()
        # The message keeps the values for as long as they are on their way; the graph does not need them.
        schedules.deallocate_output_tensor(output, self.config.deallocate_pipeline_outputs)
        return message

    def evaluate(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """Run the chunk as in inference, on held-out data."""
        self.model.eval()
        tokens = self.tokens.clone()
        # Its step is of the held-out data, and says nothing of the parameters.
        self._seen = None
        with torch.no_grad():
            output = self._run(micro_batch, received, self._data.held_out(micro_batch))
        self._seen = None
        self.model.train()
        self.tokens.copy_(tokens)
        return None if self.output is None else output

    def input_gradient(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """A backward pass whose linear layers leave their weight gradients for later."""
        with queued_weight_gradients() as queue:
            gradient = self._backward(micro_batch, received)
        self._owed[micro_batch] = OwedWeights(queue, self._delayed.take())
        return gradient

    def weight_gradient(self, micro_batch: MicroBatch) -> None:
        """Compute the weight gradients that were left."""
        owed, tell = self._owed.pop(micro_batch), self._take_on_gradient()
        late = [each.weight for each in owed.own]
        if tell is not None:
            left = {*late, *(own for each in owed.delayed for own in each.module.parameters())}
            for whole in self._trained():
                if whole not in left:
                    tell(whole)
        for place, product in enumerate(owed.own, start=1):
            add_weight_gradients([product])
            if tell is not None and all(each is not product.weight for each in late[place:]):
                tell(product.weight)
        self._delayed.compute(owed.delayed)

    def backward(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """A whole backward pass."""
        with self._delayed.at_once(), self._telling():
            return self._backward(micro_batch, received)

    def _backward(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        source, output = self._contexts.pop(micro_batch)
        if not output.requires_grad:
            # A first stage that trains nothing.
            return None
        with timed(self.config, "backward-compute", log_level=2):
            if received is None and self.config.grad_scale_func is not None:
                output = self.config.grad_scale_func(output)
            if self.config.deallocate_pipeline_outputs and self.output is not None:
                schedules.custom_backward(output, received)
            else:
                torch.autograd.backward(output, received)
        return None if source is None else source.grad

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """The chunk's."""
        return self.model.parameters()

    def owed_bytes(self) -> int:
        """What the factors that wait for W take, each storage once."""
        factors = [each.untyped_storage() for owed in self._owed.values() for each in owed.tensors()]
        storages = {each.data_ptr(): each.nbytes() for each in factors}
        return sum(storages.values())

    def take_results(self) -> dict[MicroBatch, Any]:
        """What Megatron's loss function reported since the last call, by micro-batch; empty but on the last stage."""
        results, self._results = self._results, {}
        return results

    def take_losses(self) -> Mapping[MicroBatch, float] | None:
        """The losses since the last call, if peers are told them; empty but on the last stage."""
        if not self._shares_losses:
            return None
        results = self.take_results()
        return dict(zip(results, numbers(each["lm loss"] for each in results.values()), strict=True))

    def held(self) -> Held:
        """The graphs that wait for I, and the factors that wait for W."""
        return Held(len(self._contexts), len(self._owed))

    def drop(self) -> None:
        """Forget all graphs, queues and results."""
        self._contexts.clear()
        self._owed.clear()
        self._results.clear()
        self._seen = self.on_gradient = None
        self.tokens.zero_()

    def take_tokens(self) -> int:
        """How many tokens were trained on since the last call."""
        tokens = int(self.tokens)
        self.tokens.zero_()
        return tokens

    def _trained(self) -> Iterator[torch.nn.Parameter]:
        return (each for each in self.model.parameters() if each.requires_grad)

    def _take_on_gradient(self) -> OnGradient | None:
        tell, self.on_gradient = self.on_gradient, None
        return tell

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Within the block, a backward pass tells of the gradients that it has made whole."""
        tell, hooks = self._take_on_gradient(), []
        if tell is not None:
            for each in self._trained():
                view: Any = each.expand_as(each)
                # Behind what DDP does there, which adds a gradient to those of other micro-batches.
                hooks.append(view.grad_fn.next_functions[0][0].register_hook(partial(_tell, tell, each)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _run(self, micro_batch: MicroBatch, source: torch.Tensor | None, data: Any) -> torch.Tensor:
        store: list[Any] = []
        # What layers make of their parameters once for all micro-batches, they have to make anew after a step.
        first, self._seen = micro_batch.step != self._seen, micro_batch.step
        output: torch.Tensor
        try:
            output, tokens = schedules.forward_step(
                self._forward_step,
                data,
                self.model,
                self.micro_batches,
                source,
                store,
                self.config,
                cp_group_size=self.config.context_parallel_size,
                is_first_microbatch=first,
                current_microbatch=micro_batch.number,
                is_last_stage=self.output is None,
            )
        except ViewBroken:
            # Megatron does not, and the timer starts again with the next forward pass.
            if self.config.timers is not None:
                self.config.timers("forward-compute").stop()
            raise
        if self.output is None:
            (self._results[micro_batch],) = store
            self.tokens += tokens
        return output


def _tell(tell: OnGradient, parameter: torch.nn.Parameter, *_: Any) -> None:
    tell(parameter)


@contextmanager
def timed(config: Any, name: str, log_level: int, barrier: bool = False) -> Iterator[None]:
    """Time something by one of Megatron's timers, if there are any."""
    if config.timers is None:
        yield
        return
    config.timers(name, log_level=log_level).start(barrier=barrier)
    try:
        yield
    finally:
        config.timers(name).stop()
