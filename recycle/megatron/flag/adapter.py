"""The schedule adapter: a plan behind the signature of Megatron's ``forward_backward_func``.

Stock training code calls it as it calls Megatron's own schedules, and steps its optimizer afterwards itself.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import schedules
from megatron.core.utils import get_model_config

from recycle.control.view import View
from recycle.job import Job, Server
from recycle.megatron.flag.finalize import LiveGradients, WholeGradients
from recycle.megatron.flag.loss_reports import ReportsHome
from recycle.megatron.flag.refusals import refusals, unsplit
from recycle.megatron.patching import replace
from recycle.megatron.stage import Data, MegatronStage
from recycle.megatron.world import Place
from recycle.plan.plan import Plan
from recycle.record.recorder import Recorder
from recycle.runtime.errors import RunError
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.connect import connect
from recycle.runtime.net.network import Network

HELD_OUT = -1
"""What stands for the number of an iteration where data is only looked at."""


class Work(NamedTuple):
    """What a server does in each iteration, set up at the first one.

    Attributes:
        stage: its part of the model.
        update: the end of the iteration.
        worker: runs its instructions; None if it has none.
    """

    stage: "AdaptedStage"
    update: WholeGradients | LiveGradients
    worker: Worker | None


class ScheduleAdapter:
    """Runs a plan wherever Megatron would run its schedule.

    Args:
        plan: a lowered plan.
        store: where the ranks find each other.
        data: what the iterator of any micro-batch of any other pipeline yields. The training code's own iterator only
            knows those of this pipeline; so a plan that re-routes needs it.
        epoch: of the view.
        steps: gives the number of the iteration that begins, by which data and dropout are chosen.
        seed: of dropout.
        rehearsal: whether the servers that are failed in the plan are alive, and take part in all that Megatron does
            around its schedule: they only leave their work to their peers. Otherwise Megatron's own groups would hang.

    Attributes:
        recorder: what was executed, and when.
    """

    def __init__(
        self,
        plan: Plan,
        store: torch.distributed.Store,
        data: Data | None = None,
        epoch: int = 0,
        steps: Callable[[], int] | None = None,
        seed: int = 0,
        rehearsal: bool = False,
    ) -> None:
        self.server = this_server()
        self.recorder = Recorder(self.server)
        self._plan = plan
        self._data = data
        self._steps = steps or count().__next__
        self._seed = seed
        self._whole = rehearsal or not plan.failed
        self._work: Work | None = None
        self._reports: ReportsHome | None = None
        self._network: Network | None = None
        if self.server in plan.programs:
            tensor_rank = parallel_state.get_tensor_model_parallel_rank()
            self._network = connect(store, View.of(plan, epoch), self.server, tensor_rank=tensor_rank)
        elif not rehearsal:
            raise RunError(f"plan: {self.server} has no instructions in it; a failed server takes no part in training")
        if rehearsal and plan.failed and self.server.stage == plan.job.depth - 1:
            self._reports = ReportsHome(parallel_state.get_data_parallel_group())

    def __call__(
        self,
        *,
        forward_step_func: Any,
        data_iterator: Any,
        model: Any,
        num_microbatches: int,
        seq_length: int,
        micro_batch_size: int,
        forward_only: bool = False,
        adjust_tensor_shapes_fn: Any = None,
        force_all_reduce: bool | None = False,
        **further: Any,
    ) -> list[Any]:
        """Run the plan once, with the arguments of Megatron's schedules; evaluation runs on Megatron's own.

        Returns:
            What the loss function reported: in a rehearsal of this pipeline's micro-batches, else of those whose last
            stage ran here, in the order of execution.

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
                forward_only=True,
                adjust_tensor_shapes_fn=adjust_tensor_shapes_fn,
                force_all_reduce=force_all_reduce,
                **further,
            )
        require_micro_batches(num_microbatches, self._plan.job)
        if adjust_tensor_shapes_fn is not None:
            raise RunError("adjust_tensor_shapes_fn is given: shapes between stages are fixed in a plan; do without")
        chunk = only(model)
        config = get_model_config(chunk)
        if self._work is None:
            require_supported(chunk, config, self._plan)
            tensor_ranks = config.tensor_model_parallel_size if config.sequence_parallel else 1
            shape = (seq_length // tensor_ranks, micro_batch_size, config.hidden_size)
            self._work = self._set_up(chunk, config, shape, forward_step_func)
        stage, update, worker = self._work
        update.force_all_reduce = bool(force_all_reduce)
        with timed(config, "forward-backward", log_level=1, barrier=config.barrier_with_L1_time):
            step = self._steps()
            stage.start(only(data_iterator), self.server.pipeline, step)
            if worker is None:
                update.reduce()
            else:
                worker.run(step)
            stage.finish()
            return list(stage.reported.values()) if self._reports is None else self._reports.exchange(stage.reported)

    def _set_up(self, chunk: torch.nn.Module, config: Any, shape: tuple[int, ...], forward_step: Any) -> Work:
        plan = self._plan
        place = Place(self.server.stage, plan.job.depth)
        stage = AdaptedStage(
            chunk,
            config,
            place,
            shape,
            plan.job.micro_batches,
            forward_step,
            self._data or _nothing,
            seed=self._seed,
        )
        update: WholeGradients | LiveGradients
        if self._whole:
            update = WholeGradients(chunk, config, lambda: stage.tokens)
        else:
            assert self._network is not None
            update = LiveGradients(chunk, config, lambda: stage.tokens, self._network, plan.job.depth)
        if self._network is None:
            return Work(stage, update, None)
        foreign = any(each.home != self.server.pipeline for each in plan.programs[self.server] if each.op.phases)
        if foreign and self._data is None:
            raise RunError(
                f"data: the plan routes micro-batches of other pipelines to {self.server}, and the data iterator has "
                "only those of its own: give the adapter data that is addressable by micro-batch"
            )
        return Work(stage, update, Worker(plan, stage, update, self._network, self.recorder))

    def _stock(self, **arguments: Any) -> list[Any]:
        if not self._whole:
            raise RunError(
                "forward_only: evaluation runs on Megatron's own schedule, which needs every server, and "
                f"{', '.join(map(str, self._plan.failed))} are dead; evaluate when they are back"
            )
        schedule = (
            schedules.forward_backward_pipelining_without_interleaving
            if self._plan.job.depth > 1
            else schedules.forward_backward_no_pipelining
        )
        result: list[Any] = schedule(**arguments)
        return result


class AdaptedStage(MegatronStage):
    """A stage that takes its own pipeline's data from the training code, and keeps what its loss function reports.

    Attributes:
        reported: of the last iteration, by micro-batch in the order of execution.
    """

    reported: dict[MicroBatch, Any]

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._read: dict[int, list[Any]] = {}

    def start(self, iterator: Iterator[Any] | None, home: int, step: int = HELD_OUT) -> None:
        """Begin an iteration with the training code's data; that of the iteration before it is kept.

        Args:
            iterator: gives one pipeline's data; None where a stage needs none.
            home: the pipeline.
            step: the iteration; none in an evaluation.
        """
        self._iterator = iterator
        self._home = home
        self._step = step
        self._read = {each: items for each, items in self._read.items() if each + 1 >= step} | {step: []}
        self.restart()

    def restart(self) -> None:
        """Begin the iteration anew, with the same data."""
        self.reported = {}
        self.tokens.zero_()

    def finish(self) -> None:
        """Leave the training code's data where a stock schedule leaves it."""
        if self._iterator is not None:
            self._read_up_to(self._micro_batches)
        self._read.pop(HELD_OUT, None)

    def batches(self, data: Data, micro_batch: MicroBatch) -> Any:
        """The iterator of one micro-batch: an item of the training code's own, or other data."""
        if self._iterator is None:
            return None
        if micro_batch.home != self._home:
            return super().batches(data, micro_batch)
        return iter([self._read[micro_batch.step][micro_batch.number]])

    def forward(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """Read the data, and run the chunk.

        Stages may execute micro-batches in different orders, and still mean the same by a number.
        """
        # Before dropout is seeded, because reading may draw random numbers as well.
        self._read_own(micro_batch)
        return super().forward(micro_batch, received)

    def evaluate(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """Read the data, and run the chunk as in inference."""
        held_out = micro_batch._replace(step=HELD_OUT)
        self._read_own(held_out)
        return super().evaluate(held_out, received)

    def backward(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """A backward pass, timed as Megatron times it."""
        with timed(self._config, "backward-compute", log_level=2):
            return super().backward(micro_batch, received)

    def take_losses(self) -> None:
        """None: the training code makes of the reports what it likes."""
        self.reported = self.take_results()

    def _read_own(self, micro_batch: MicroBatch) -> None:
        own = self._iterator is not None and micro_batch.home == self._home
        if own and micro_batch.step == self._step:
            self._read_up_to(micro_batch.number + 1)

    def _read_up_to(self, number: int) -> None:
        assert self._iterator is not None
        items = self._read[self._step]
        while len(items) < number:
            items.append(next(self._iterator))


def this_server() -> Server:
    """Which server this rank belongs to, by Megatron's groups."""
    return Server(parallel_state.get_data_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank())


def install(adapter: ScheduleAdapter) -> None:
    """Make training code on megatron.core use an adapter: both names that give a schedule give this one.

    Raises:
        RunError: this release has other names.
    """
    from megatron.core import pipeline_parallel

    def get_forward_backward_func(*_: Any, **__: Any) -> Callable[..., list[Any]]:
        return adapter

    replace(schedules, "get_forward_backward_func", get_forward_backward_func)
    replace(pipeline_parallel, "get_forward_backward_func", get_forward_backward_func)


def require_supported(model: torch.nn.Module, config: Any, plan: Plan) -> None:
    """Refuse a set-up that a plan cannot run.

    Args:
        model: the chunk as Megatron's training code passes it, wrapped in DDP or not.
        config: its configuration.
        plan: what is to be run.

    Raises:
        RunError: a setting has to be changed; the message says which and how.
    """

    def setting(name: str) -> Any:
        found = getattr(config, name, None)
        return getattr(getattr(model, "ddp_config", None), name, None) if found is None else found

    for problem in refusals(setting):
        raise RunError(problem)
    if config.pipeline_model_parallel_size != plan.job.depth:
        raise RunError(
            f"pipeline_model_parallel_size is {config.pipeline_model_parallel_size}, and the plan has "
            f"{plan.job.depth} stages: make a plan for this job"
        )
    if plan.mode.backward == "fused":
        return
    for problem in unsplit(lambda name: None if name == "transformer_impl" else setting(name)):
        raise RunError(problem)
    for module in model.modules():
        if type(module).__module__.endswith("extensions.transformer_engine"):
            raise RunError(
                f"{type(module).__name__} is a layer of Transformer Engine, whose backward pass is not split here: "
                "use the local layer spec (--transformer-impl local), or plan with --backward fused"
            )


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


def require_micro_batches(number: int, job: Job) -> None:
    """Refuse to run a plan for other batches.

    Raises:
        RunError: a pipeline has another number of micro-batches than in the plan.
    """
    if number != job.micro_batches:
        raise RunError(
            f"num_microbatches is {number}, and the plan has {job.micro_batches} per pipeline: make a plan for this "
            "batch size"
        )


def only(value: Any) -> Any:
    """What Megatron passes as a list of one where it has chunks.

    Raises:
        RunError: there are several.
    """
    if not isinstance(value, list):
        return value
    if len(value) != 1:
        raise RunError(f"model: it comes in {len(value)} chunks, and plans are for one chunk per server")
    return value[0]


def _nothing(micro_batch: MicroBatch) -> Any:
    raise AssertionError(f"nobody asked for {micro_batch}")
