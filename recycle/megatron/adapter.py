"""The schedule adapter: a plan behind the signature of Megatron's ``forward_backward_func``.

Stock training code calls it as it calls Megatron's own schedules, and steps its optimizer afterwards itself.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import schedules
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.utils import get_attr_wrapped_model, get_model_config

from recycle.control.view import View
from recycle.job import Server
from recycle.megatron.patching import replace
from recycle.megatron.stage import Data, MegatronStage
from recycle.megatron.support import require_supported
from recycle.megatron.ties import Tie
from recycle.megatron.world import Place
from recycle.plan.plan import Plan
from recycle.runtime.errors import RunError
from recycle.runtime.network import Network
from recycle.runtime.recording import Recorder
from recycle.runtime.stage import MicroBatch, Redo
from recycle.runtime.worker import Worker


class ScheduleAdapter:
    """Runs a plan wherever Megatron would run its schedule.

    Args:
        plan: a lowered plan in which this server is alive.
        store: where the ranks find each other.
        data: what the iterator of any micro-batch of any pipeline yields. Without it, micro-batches come from the
            training code's own iterator, which only knows those of this pipeline; so a plan that re-routes needs it.
        epoch: of the view.

    Attributes:
        step: the number of the next iteration, by which data and dropout are chosen.
        recorder: what was executed, and when.
    """

    def __init__(self, plan: Plan, store: torch.distributed.Store, data: Data | None = None, epoch: int = 0) -> None:
        self.server = this_server()
        if self.server not in plan.programs:
            raise RunError(f"plan: {self.server} has no instructions in it; a failed server takes no part in training")
        self.step = 0
        self.recorder = Recorder(self.server)
        self._plan = plan
        self._data = data
        self._network = Network(
            store, View.of(plan, epoch), self.server, parallel_state.get_tensor_model_parallel_rank()
        )
        self._worker: Worker | None = None
        self._stage: AdaptedStage | None = None

    def __call__(
        self,
        *,
        forward_step_func: Any,
        data_iterator: Any,
        model: Any,
        num_microbatches: int,
        seq_length: int,
        micro_batch_size: int,
        decoder_seq_length: int | None = None,
        forward_only: bool = False,
        collect_non_loss_data: bool = False,
        first_val_step: bool | None = None,
        **further: Any,
    ) -> list[Any]:
        """Run the plan once, with the arguments of Megatron's schedules; ``further`` are those of newer releases.

        Returns:
            What the loss function reported of each micro-batch whose last stage ran here, in the order of execution.

        Raises:
            RunError: the plan does not fit the call, or a setting is not supported.
        """
        if forward_only:
            return self._stock(
                forward_step_func=forward_step_func,
                data_iterator=data_iterator,
                model=model,
                num_microbatches=num_microbatches,
                seq_length=seq_length,
                micro_batch_size=micro_batch_size,
                decoder_seq_length=decoder_seq_length,
                forward_only=True,
                collect_non_loss_data=collect_non_loss_data,
                first_val_step=first_val_step,
                **further,
            )
        chunk = _only(model)
        if num_microbatches != self._plan.job.micro_batches:
            raise RunError(
                f"num_microbatches is {num_microbatches}, and the plan has {self._plan.job.micro_batches} per "
                "pipeline: make a plan for this batch size"
            )
        if self._worker is None or self._stage is None:
            config = get_model_config(chunk)
            require_supported(chunk, config, self._plan)
            tensor_ranks = config.tensor_model_parallel_size if config.sequence_parallel else 1
            shape = (seq_length // tensor_ranks, micro_batch_size, config.hidden_size)
            self._stage = self._make_stage(chunk, config, shape, forward_step_func)
            update = FinalizedGradients(chunk, config, self._plan, self._network, self._stage)
            self._worker = Worker(self._plan, self.server, self._stage, update, self._network, self.recorder)
        self._stage.start(_only(data_iterator))
        self._worker.run(self.step)
        self.step += 1
        return self._stage.reported

    def _make_stage(
        self, chunk: torch.nn.Module, config: Any, shape: tuple[int, ...], forward_step: Any
    ) -> "AdaptedStage":
        foreign = any(each.home != self.server.pipeline for each in self._plan.programs[self.server] if each.op.phases)
        if foreign and self._data is None:
            raise RunError(
                f"data: the plan routes micro-batches of other pipelines to {self.server}, and the data iterator has "
                "only those of its own: give the adapter data that is addressable by micro-batch"
            )
        place = Place(self.server.stage, self._plan.job.depth)
        return AdaptedStage(chunk, config, place, shape, self._plan.job.micro_batches, forward_step, self._data)

    def _stock(self, **arguments: Any) -> list[Any]:
        if self._plan.failed:
            raise RunError(
                "forward_only: evaluation runs on Megatron's own schedule, which needs every server, and "
                f"{', '.join(map(str, self._plan.failed))} are dead; evaluate when they are back"
            )
        result: list[Any] = schedules.forward_backward_pipelining_without_interleaving(**arguments)
        return result


class AdaptedStage(MegatronStage):
    """A stage that takes its data from the training code, and keeps what its loss function reports."""

    def __init__(
        self,
        model: torch.nn.Module,
        config: Any,
        place: Place,
        shape: tuple[int, ...],
        micro_batches: int,
        forward_step: Any,
        data: Data | None,
    ) -> None:
        super().__init__(model, config, place, shape, micro_batches, forward_step, data or _nothing)
        self._addressable = data
        self._iterator: Iterator[Any] | None = None
        self._read = 0
        self._waiting: dict[int, Any] = {}
        self.reported: list[Any] = []

    def start(self, iterator: Iterator[Any] | None) -> None:
        """Begin an iteration with the training code's data."""
        self._iterator = iterator
        self._read = 0
        self.reported = []
        self.tokens.zero_()

    def batches(self, data: Data, micro_batch: MicroBatch) -> Any:
        """Addressable data if there is any; else the item of the training code's own iterator.

        Stages may execute micro-batches in different orders, and still mean the same by a number.
        """
        if self._addressable is not None or self._iterator is None:
            return None if self._addressable is None else super().batches(data, micro_batch)
        while self._read <= micro_batch.number:
            self._waiting[self._read] = next(self._iterator)
            self._read += 1
        return iter([self._waiting.pop(micro_batch.number)])

    def take_losses(self) -> Mapping[MicroBatch, float]:
        """None: the training code makes of the reports what it likes."""
        self.reported = list(self.take_results().values())
        return {}


class FinalizedGradients:
    """The end of an iteration in Megatron's terms; the optimizer is the training code's.

    While every server is alive, Megatron finalizes its gradients itself. With dead servers its groups would hang, so
    the same is done over the live ones: the same factors, a sum over the peers, the sum of tied embeddings, and the
    division by the number of tokens where the loss is one of tokens.
    """

    def __init__(self, model: torch.nn.Module, config: Any, plan: Plan, network: Network, stage: AdaptedStage) -> None:
        self._model = model
        self._config = config
        self._stage = stage
        self._network = network
        self._whole = not plan.failed
        self._depth = plan.job.depth
        if not self._whole and not hasattr(model, "expert_parallel_buffers"):
            raise RunError("model: with dead servers, gradients are reduced in Megatron's DDP buffers; wrap it in DDP")
        self._buffers: list[Any] = getattr(model, "buffers")  # noqa: B009 - DDP's list has the name of a method
        self._tie = None if self._whole else self._make_tie()

    def reduce(self) -> None:
        """Give every live server of the stage the gradient of the whole batch."""
        if self._whole:
            self._finalize()
            return
        for buffer in self._buffers:
            if buffer.gradient_scaling_factor != 1.0:
                buffer.grad_data *= buffer.gradient_scaling_factor
            self._network.peers.sum(buffer.grad_data)
        if self._tie is not None:
            self._tie.reduce()
        if self._config.calculate_per_token_loss:
            tokens = self._stage.tokens.to(torch.float64)
            self._network.all.sum(tokens)
            for buffer in self._buffers:
                buffer.scale_gradients(1.0 / tokens.item())

    @property
    def waits(self) -> bool:
        """No: what the training code does when the schedule returns is not known here."""
        return False

    def collect(self) -> None:
        """Nothing: Megatron's buffers add up by themselves."""

    def validate(self) -> Redo:
        """Nothing: the training code steps its optimizer, and knows."""
        return Redo.NOTHING

    def step(self) -> Redo:
        """Nothing: the training code steps its optimizer when the schedule returns."""
        return Redo.NOTHING

    def _finalize(self) -> None:
        if self._config.finalize_model_grads_func is None:
            return
        groups = ProcessGroupCollection.use_mpu_process_groups()
        tokens = self._stage.tokens if self._config.calculate_per_token_loss else None
        self._config.finalize_model_grads_func([self._model], tokens, pg_collection=groups)

    def _make_tie(self) -> Tie | None:
        tied = get_attr_wrapped_model(self._model, "share_embeddings_and_output_weights")
        if not tied or self._depth == 1 or self._network.server.stage not in (0, self._depth - 1):
            return None
        weight = get_attr_wrapped_model(self._model, "shared_embedding_or_output_weight")()
        return Tie(weight, self._network, self._depth)


def this_server() -> Server:
    """Which server this rank belongs to, by Megatron's groups."""
    return Server(parallel_state.get_data_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank())


def install(adapter: ScheduleAdapter) -> None:
    """Make Megatron's training code use an adapter: every name by which it asks for a schedule gives this one.

    Raises:
        RunError: this release has other names.
    """
    import sys

    from megatron.core import pipeline_parallel

    def get_forward_backward_func(*_: Any, **__: Any) -> Callable[..., list[Any]]:
        return adapter

    replace(schedules, "get_forward_backward_func", get_forward_backward_func)
    replace(pipeline_parallel, "get_forward_backward_func", get_forward_backward_func)
    training = sys.modules.get("megatron.training.training")
    if training is not None:
        replace(training, "get_forward_backward_func", get_forward_backward_func)


def _only(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if len(value) != 1:
        raise RunError(f"model: it comes in {len(value)} chunks, and plans are for one chunk per server")
    return value[0]


def _nothing(micro_batch: MicroBatch) -> Any:
    raise AssertionError(f"nobody asked for {micro_batch}")
