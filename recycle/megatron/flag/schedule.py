"""A plan in the place of Megatron's schedule, behind the signature of its ``forward_backward_func``."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, Self

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import schedules
from megatron.core.utils import get_model_config

from recycle.control.view import ServerRank
from recycle.job import Server
from recycle.megatron.flag.requirements import only, require_micro_batches, require_supported
from recycle.megatron.flag.script_data import ScriptData
from recycle.megatron.flag.server_ranks import ONE_RANK, ServerRanks
from recycle.megatron.shared.stage import ForwardStep, MegatronStage, timed
from recycle.megatron.shared.world import Place
from recycle.plan.plan import Plan
from recycle.runtime.errors import RunError


class Execution(Protocol):
    """How a server executes the plan of an iteration."""

    def begin(self, stage: MegatronStage) -> None:
        """Execute over a stage from now on; called once, by all servers."""

    def train(self, step: int, force_all_reduce: bool) -> list[Any]:
        """Make an iteration.

        Args:
            step: its number.
            force_all_reduce: whether Megatron wants gradients reduced though its settings leave it to others.

        Returns:
            What the loss function reported, for the training code; empty but on the last stage.
        """


class Evaluation(Protocol):
    """How a server evaluates the model by a plan."""

    def settle(self) -> None:
        """Make sure that the present version is what it will stay; all servers come here."""

    def evaluate(self) -> list[Any]:
        """Look at one batch; returns what the loss function reported, as in training."""


class Call(NamedTuple):
    """What Megatron's training code asks of a schedule, as far as it matters to a plan."""

    forward_step_func: ForwardStep
    data_iterator: Any
    model: Any
    num_microbatches: int
    seq_length: int
    micro_batch_size: int
    forward_only: bool = False
    collect_non_loss_data: bool = False
    adjust_tensor_shapes_fn: Any = None
    force_all_reduce: bool | None = False

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """The call with these arguments, of which releases have more and more."""
        return cls(**{name: value for name, value in arguments.items() if name in cls._fields})


class PlanSchedule:
    """Runs a plan wherever Megatron would run its schedule.

    Args:
        plan: with which training begins; lowered.
        server: which server this is.
        data: what the script's iterators give.
        steps: gives the number of the iteration that begins, by which data and dropout are chosen.
        seed: of dropout.
        execution: what executes the plan.
        evaluation: what evaluates by the plan; None to leave that to Megatron's own schedule, which takes all servers.
    """

    def __init__(
        self,
        plan: Plan,
        server: Server,
        data: ScriptData,
        steps: Callable[[], int],
        seed: int,
        execution: Execution,
        evaluation: Evaluation | None = None,
    ) -> None:
        self._plan = plan
        self._server = server
        self._data = data
        self._steps = steps
        self._seed = seed
        self._execution = execution
        self._evaluation = evaluation
        self._stage: MegatronStage | None = None

    @property
    def micro_batches(self) -> int:
        """M."""
        return self._plan.job.micro_batches

    def __call__(self, **arguments: Any) -> list[Any]:
        """Run the plan once, with the arguments of Megatron's schedules.

        Returns:
            What the loss function reported; see Execution.

        Raises:
            RunError: the plan does not fit the call, or a setting is not supported.
        """
        call = Call.of(arguments)
        if call.forward_only and self._evaluation is None:
            return stock_schedule(self._plan.job.depth)(**arguments)
        require_micro_batches(call.num_microbatches, self._plan)
        for name in ("adjust_tensor_shapes_fn", "collect_non_loss_data"):
            if getattr(call, name):
                raise RunError(f"{name} is given, which no plan knows of: do without")
        iterator, config = only(call.data_iterator), self.begin(call).config
        if call.forward_only:
            assert self._evaluation is not None
            self._evaluation.settle()
            with self._data.evaluation(iterator):
                return self._evaluation.evaluate()
        with timed(config, "forward-backward", log_level=1, barrier=config.barrier_with_L1_time):
            step = self._steps()
            with self._data.iteration(iterator, step):
                return self._execution.train(step, bool(call.force_all_reduce))

    def begin(self, call: Call) -> MegatronStage:
        """Make ready for such calls, if that was not done yet; gives what computes."""
        if self._stage is None:
            self._stage = self._make_stage(call)
            self._execution.begin(self._stage)
        return self._stage

    def _make_stage(self, call: Call) -> MegatronStage:
        job = self._plan.job
        chunk = only(call.model)
        config = get_model_config(chunk)
        require_supported(chunk, config, self._plan)
        parts = config.tensor_model_parallel_size if config.sequence_parallel else 1
        parts *= config.context_parallel_size
        return MegatronStage(
            chunk,
            Place(self._server.stage, job.depth),
            (call.seq_length // parts, call.micro_batch_size, config.hidden_size),
            job.micro_batches,
            call.forward_step_func,
            self._data,
            self._seed,
            shares_losses=False,
        )


class ThisRank(NamedTuple):
    """Where this rank is, by Megatron's groups.

    Attributes:
        server: to which it belongs.
        rank: which of the server's it is.
        layout: how the ranks of a server divide its work.
    """

    server: Server
    rank: ServerRank
    layout: ServerRanks

    @property
    def pipeline(self) -> int:
        """In which of the pipelines through its server it is."""
        return self.layout.pipeline(self.rank.number)

    @classmethod
    def find(cls, layout: ServerRanks = ONE_RANK) -> Self:
        """This rank.

        Args:
            layout: how the ranks of a server divide its work.
        """
        _, rank = layout.place(torch.distributed.get_rank())
        home, pipeline = divmod(parallel_state.get_data_parallel_rank(), layout.pipelines)
        here = cls(Server(home, parallel_state.get_pipeline_model_parallel_rank()), rank, layout)
        assert pipeline == here.pipeline, f"{rank} is in pipeline {pipeline} of its server"
        return here


def stock_schedule(depth: int) -> Callable[..., list[Any]]:
    """Megatron's own schedule for so many stages of one chunk each."""
    schedule: Callable[..., list[Any]] = (
        schedules.forward_backward_pipelining_without_interleaving
        if depth > 1
        else schedules.forward_backward_no_pipelining
    )
    return schedule
