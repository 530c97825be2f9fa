"""The parameters of a chunk in Megatron's DDP, as a stage steps them itself with Megatron's inner optimizer."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from recycle.runtime.step.main_parameters import EVERYTHING, MainParameters

SETTINGS = ("lr", "weight_decay")
"""What Megatron's scheduler changes in an optimizer's groups between two iterations."""


class DdpParameters(MainParameters):
    """Parameters to whose ``main_grad`` DDP adds gradients itself; the optimizer has the main ones.

    The optimizer's groups are the training code's, which has gone on when a step is made again. So what its scheduler
    had set for an iteration is kept, used for the step, and taken back after it.

    Args:
        parameters: the chunk's.
        optimizer: Megatron's inner one.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        self._main = {each: getattr(each, "main_param", each) for each in parameters if each.requires_grad}
        self._sizes = [len(self._main)]
        self._gradients: Sequence[torch.Tensor] = ()
        self._optimizer = optimizer
        self._settings: dict[int, list[dict[str, Any]]] = {}
        self._present: list[dict[str, Any]] = []

    def keep_settings(self, version: int) -> None:
        """The scheduler has set its values for the step from a version; those of the two before are still of use."""
        self._settings = {each: self._settings[each] for each in self._settings if each + 2 >= version}
        self._settings[version] = self._read_settings()

    def prepare(self, optimizer: torch.optim.Optimizer, version: int) -> None:
        """Have the next step made as the scheduler had it for the one from a version."""
        self._present = self._read_settings()
        self._write_settings(self._settings[version])

    def use(self, gradients: Sequence[torch.Tensor], which: slice = EVERYTHING) -> None:
        """See MainParameters."""
        self._gradients = gradients
        for model, gradient in list(zip(self._main, gradients, strict=True))[which]:
            model.main_grad = gradient  # type: ignore[attr-defined]

    def step(self, optimizer: torch.optim.Optimizer, which: slice = EVERYTHING) -> None:
        """See MainParameters; between steps no parameter has a gradient, because DDP would add it again."""
        for main, gradient in zip(self._main.values(), self._gradients, strict=True):
            main.grad = gradient
        super().step(optimizer, which)
        for main in self._main.values():
            main.grad = None
        self._write_settings(self._present)

    def _read_settings(self) -> list[dict[str, Any]]:
        return [{name: group[name] for name in SETTINGS if name in group} for group in self._optimizer.param_groups]

    def _write_settings(self, settings: Sequence[dict[str, Any]]) -> None:
        for group, values in zip(self._optimizer.param_groups, settings, strict=True):
            group.update(values)
