"""Model and optimizer of a stage whose steps are Megatron's training code's, for one who comes back."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch

from recycle.megatron.flag.ddp_parameters import DdpParameters
from recycle.runtime.step.checkpoint import give_state, stage_state

OTHERS = "others/"


class WholeStage:
    """The parameters that are stepped, their moments, and whatever else the chunk holds; it is TakenOver.

    Args:
        model: the chunk.
        optimizer: Megatron's.
    """

    def __init__(self, model: torch.nn.Module, optimizer: Any) -> None:
        self._model = model
        self._optimizer: torch.optim.Optimizer = optimizer.optimizer
        self._parameters = DdpParameters(model.parameters(), self._optimizer)

    def state(self, _: int) -> dict[str, torch.Tensor]:
        """See TakenOver."""
        stepped = stage_state(self._parameters.named(self._model), self._optimizer)
        return {**stepped, **{f"{OTHERS}{name}": each for name, each in self._others()}}

    def adopt(self, _: int, state: Mapping[str, torch.Tensor]) -> None:
        """See TakenOver."""
        give_state(state, self._parameters.named(self._model), self._optimizer)
        self._parameters.copy_back()
        for name, each in self._others():
            each.copy_(state[f"{OTHERS}{name}"])

    def _others(self) -> Iterator[tuple[str, torch.Tensor]]:
        fixed = ((name, each.detach()) for name, each in self._model.named_parameters() if not each.requires_grad)
        return chain(fixed, self._model.named_buffers())
