"""What stages of a pipeline tell each other of the optimizer's step, in one call for all that training code asks."""

from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state
from torch.distributed import ReduceOp

from recycle.megatron.shared.patching import replace
from recycle.runtime.device import own_device

NOTHING = -1.0
"""What Megatron takes for a figure that a rank does not have."""


def as_told(figure: float | None, **_: object) -> float | None:
    """A figure as stages would tell it to each other, which is a float32: all of them know it already."""
    return figure and torch.tensor(figure, dtype=torch.float32).item()


class StepOutcome:
    """Whether a step was made, the norm, and the number of zeros where it is logged: of all stages together.

    Args:
        optimizer: Megatron's; its step is replaced by one whose outcome all stages share.
        counts_zeros: whether the training code asks for the number of zeros.
        training: Megatron's module of this name, where those names are replaced by which it asks.
    """

    def __init__(self, optimizer: Any, counts_zeros: bool, training: Any) -> None:
        self._own_step = optimizer.step
        self._own_greatest: Callable[..., float | None] = training.reduce_max_stat_across_model_parallel_group
        self._made, self._asked = True, 2 if counts_zeros else 1
        self._figures: list[float | None] = []
        optimizer.step = self._step
        replace(training, "logical_and_across_model_parallel_group", lambda *_, **__: self._made)
        replace(training, "reduce_max_stat_across_model_parallel_group", self._greatest)

    def _step(self) -> Any:
        result = made, *figures = self._own_step()
        figures = [NOTHING if each is None else float(each) for each in figures[: self._asked]]
        said = torch.tensor([float(not made), *figures], device=own_device())
        torch.distributed.all_reduce(said, ReduceOp.MAX, parallel_state.get_model_parallel_group())
        failed, *greatest = said.tolist()
        self._made, self._figures = not failed, [None if each == NOTHING else each for each in greatest]
        return result

    def _greatest(self, figure: float, **group: Any) -> float | None:
        """What was shared with the step, in the order in which it is asked for; all else is asked as ever."""
        return self._figures.pop(0) if self._figures else self._own_greatest(figure, **group)
