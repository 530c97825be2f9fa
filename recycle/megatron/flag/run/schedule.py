"""A plan in the place of Megatron's schedule, behind the signature of its ``forward_backward_func``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from megatron.core.utils import get_model_config

from recycle.job import Server
from recycle.megatron.flag.command.refusals import refusals
from recycle.megatron.flag.data.script_data import ScriptData
from recycle.megatron.flag.run.protected import ProtectedExecution
from recycle.megatron.flag.steps.gradients import take_overlaps_over
from recycle.megatron.shared.stage import ForwardStep, MegatronStage, timed
from recycle.megatron.shared.world import Place
from recycle.plan.plan import Plan
from recycle.runtime.errors import RunError


class ScheduleCall(NamedTuple):
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
    """

    def __init__(
        self,
        plan: Plan,
        server: Server,
        data: ScriptData,
        steps: Callable[[], int],
        seed: int,
        execution: ProtectedExecution,
    ) -> None:
        self._plan = plan
        self._server = server
        self._data = data
        self._steps = steps
        self._seed = seed
        self._execution = execution
        self._stages: Sequence[MegatronStage] = ()

    @property
    def micro_batches(self) -> int:
        """M: the most that a batch has of each pipeline."""
        return self._plan.job.micro_batches

    def __call__(self, **arguments: Any) -> list[Any]:
        """Run the plan once, with the arguments of Megatron's schedules.

        Returns:
            What the loss function reported; see ProtectedExecution.

        Raises:
            RunError: the plan does not fit the call, or a setting is not supported.
        """
        call = ScheduleCall.of(arguments)
        require_micro_batches(call.num_microbatches, self._plan, call.forward_only)
        for name in ("adjust_tensor_shapes_fn", "collect_non_loss_data"):
            if getattr(call, name):
                raise RunError(f"{name} is given, which no plan knows of: do without")
        if call.forward_only and self._execution.arrives:
            raise RunError(
                f"{self._server} has come back, and the script evaluates the model before it trains: the others are "
                "past that, and let it in before an iteration only; restart the job"
            )
        stages = self.begin(call)
        for stage in stages:
            stage.micro_batches = call.num_microbatches
        last = stages[-1]
        iterator, config = iterator_of(call.data_iterator, last.output is None), last.config
        if call.forward_only:
            self._execution.settle()
            with self._data.evaluation(iterator, call.num_microbatches):
                return self._execution.evaluate()
        with timed(config, "forward-backward", log_level=1, barrier=config.barrier_with_L1_time):
            step = self._steps()
            with self._data.iteration(iterator, step, call.num_microbatches):
                return self._execution.train(step)

    def begin(self, call: ScheduleCall) -> Sequence[MegatronStage]:
        """Make ready for such calls, if that was not done yet; gives what computes."""
        if not self._stages:
            self._stages = self._make_stages(call)
            self._execution.begin(self._stages)
        return self._stages

    def _make_stages(self, call: ScheduleCall) -> list[MegatronStage]:
        job = self._plan.job
        models = each_of(call.model)
        config = get_model_config(models[0])
        require_supported(models, config)
        take_overlaps_over(models)
        parts = config.tensor_model_parallel_size if config.sequence_parallel else 1
        parts *= config.context_parallel_size
        return [
            MegatronStage(
                model,
                Place(chunk, len(job.stages)),
                (call.seq_length // parts, call.micro_batch_size, config.hidden_size),
                job.micro_batches,
                call.forward_step_func,
                self._data,
                self._seed,
                shares_losses=False,
            )
            for chunk, model in zip(job.chunks[self._server.stage], models, strict=True)
        ]


def require_supported(models: Sequence[Any], config: Any) -> None:
    """Refuse a set-up that a plan cannot run.

    Args:
        models: the chunks of this rank as Megatron's training code passes them, wrapped in DDP or not.
        config: its configuration.

    Raises:
        RunError: a setting has to be changed; the message says which and how.
    """

    def setting(name: str) -> Any:
        found = getattr(config, name, None)
        return getattr(getattr(models[0], "ddp_config", None), name, None) if found is None else found

    for problem in refusals(setting):
        raise RunError(str(problem))


def require_micro_batches(number: int, plan: Plan, forward_only: bool) -> None:
    """Refuse to run a plan for larger batches.

    Args:
        number: of micro-batches of each pipeline.
        plan: with the most that training has; evaluations have as many.
        forward_only: whether this is one.

    Raises:
        RunError: the plan has fewer.
    """
    planned = plan.job.micro_batches
    if number > planned or (forward_only and number != planned):
        raise RunError(
            f"num_microbatches is {number}, and the plan has {planned} per pipeline: make a plan for this batch size"
        )


def each_of(value: Any) -> list[Any]:
    """What Megatron passes as it is, or as a list where it has chunks."""
    return value if isinstance(value, list) else [value]


def iterator_of(value: Any, last: bool) -> Any:
    """The iterator that a rank's chunk at an end of the model reads from; None where it reads none.

    Args:
        value: what Megatron passes; some scripts give middle chunks the same data, and none of it is used.
        last: whether the rank has the last chunk.
    """
    iterators = each_of(value)
    ordered = reversed(iterators) if last else iterators
    return next((each for each in ordered if each is not None), None)
