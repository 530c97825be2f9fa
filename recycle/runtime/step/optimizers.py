"""The optimizers that a stage can step on its own, and undo: those whose state belongs to single parameters."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from recycle.runtime.errors import RunError
from recycle.runtime.model_keys import Decay, Kind


class RateSchedule(NamedTuple):
    """The learning rate by the number of steps, as Megatron's scheduler has it.

    Attributes:
        peak: the greatest rate, after the warm-up.
        least: the rate when the decay is over.
        warm_up: steps in which the rate rises from zero.
        end: the step after which the rate is the least one.
        decay: how it falls between.
    """

    peak: float
    least: float = 0.0
    warm_up: int = 0
    end: int = 0
    decay: Decay = "constant"

    def prepare(self, optimizer: Optimizer, _: int) -> None:
        """Have an optimizer step with the rate of its next step."""
        set_rate(optimizer, self.at(steps_made(optimizer)))

    def at(self, steps: int) -> float:
        """The rate of the step that follows so many."""
        if steps <= self.warm_up and self.warm_up:
            return self.peak * steps / self.warm_up
        if self.decay == "constant":
            return self.peak
        if steps > self.end:
            return self.least
        share = (steps - self.warm_up) / (self.end - self.warm_up)
        left = 1 - share if self.decay == "linear" else 0.5 * (math.cos(math.pi * share) + 1)
        return self.least + left * (self.peak - self.least)


class CountingSGD(SGD):
    """SGD that counts its steps in the state of every parameter, as AdamW does."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step all parameters that have a gradient."""
        result = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["step"] = state.get("step", torch.zeros(())) + 1
        return result


def make_optimizer(
    kind: Kind, parameters: Iterable[torch.nn.Parameter], rate: float, weight_decay: float, momentum: float
) -> Optimizer:
    """An optimizer in which only matrices decay, as Megatron has it: no biases, and no norms.

    Args:
        kind: which.
        parameters: the stage's.
        rate: the learning rate.
        weight_decay: of matrices.
        momentum: of SGD; AdamW has its own.
    """
    matrices: list[torch.nn.Parameter] = []
    vectors: list[torch.nn.Parameter] = []
    for parameter in parameters:
        (vectors if parameter.dim() == 1 else matrices).append(parameter)
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    filled = [group for group in groups if group["params"]]
    return AdamW(filled, rate) if kind == "adamw" else CountingSGD(filled, rate, momentum)


def require_supported(optimizer: Optimizer) -> None:
    """Refuse what a stage cannot step on its own, or undo.

    Raises:
        RunError: it is another one than those of this module.
    """
    if type(optimizer) not in (AdamW, Adam, SGD, CountingSGD):
        raise RunError(
            f"optimizer is {type(optimizer).__name__}: nobody knows whether a stage can step it on its own and take "
            "a step back; use adamw or sgd"
        )


def steps_made(optimizer: Optimizer) -> int:
    """How many steps the present state has behind it; iterations whose gradient was not finite made none."""
    return max((int(state["step"]) for state in optimizer.state.values() if "step" in state), default=0)


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Step with this learning rate from now on."""
    for group in optimizer.param_groups:
        group["lr"] = rate
