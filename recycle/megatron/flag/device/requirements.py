"""What must hold of what Megatron has set up before a plan can run on it."""

from collections.abc import Sequence
from typing import Any

from recycle.megatron.flag.command.refusals import refusals
from recycle.plan.plan import Plan
from recycle.runtime.errors import RunError


def require_supported(models: Sequence[Any], config: Any, plan: Plan) -> None:
    """Refuse a set-up that a plan cannot run.

    Args:
        models: the chunks of this rank as Megatron's training code passes them, wrapped in DDP or not.
        config: its configuration.
        plan: what is to be run.

    Raises:
        RunError: a setting has to be changed; the message says which and how.
    """

    def setting(name: str) -> Any:
        found = getattr(config, name, None)
        return getattr(getattr(models[0], "ddp_config", None), name, None) if found is None else found

    for problem in refusals(setting):
        raise RunError(str(problem))
    if config.pipeline_model_parallel_size != plan.job.depth:
        raise RunError(
            f"pipeline_model_parallel_size is {config.pipeline_model_parallel_size}, and the plan has "
            f"{plan.job.depth} stages: make a plan for this job"
        )
    held = len(plan.job.stages) // plan.job.depth
    if len(models) != held:
        raise RunError(
            f"model: it comes in {len(models)} chunks, and the plan has {held} per server: plan for this job"
        )


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
