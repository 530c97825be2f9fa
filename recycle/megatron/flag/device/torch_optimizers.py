"""Torch's optimizers in the place of Transformer Engine's or Apex's, and checkpoints where they step.

Torch's Adam keeps the number of its steps with each parameter, and has no state before the first one. Megatron counts
on state that is there, and reads what it has loaded into parameters that are being trained.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from megatron.core import optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from recycle.megatron.shared.patching import replace


def take_torch_optimizers() -> None:
    """Have Megatron make Adam and SGD of torch's: a stage that steps on its own can take their steps back."""
    for name, value in (("USING_PYTORCH_OPTIMIZER", True), ("Adam", torch.optim.AdamW), ("SGD", torch.optim.SGD)):
        replace(optimizer, name, value)


def load_where_torch_steps() -> None:
    """Have distributed optimizers load checkpoints if it is torch's Adam that steps in this process."""
    if optimizer.USING_PYTORCH_OPTIMIZER:
        load_with_torch_adam()


def load_with_torch_adam() -> None:
    """Have distributed optimizers load checkpoints."""
    replace(DistributedOptimizer, "state_dict", _with_state(DistributedOptimizer.state_dict))
    replace(DistributedOptimizer, "load_state_dict", _counting_each(DistributedOptimizer.load_state_dict))
    for name in ("load_parameter_state_from_dp_zero", "_set_main_param_and_optimizer_states"):
        replace(DistributedOptimizer, name, torch.no_grad()(getattr(DistributedOptimizer, name)))
    own_set = DistributedOptimizer._set_main_param_and_optimizer_states  # noqa: SLF001 - it has no other name

    @wraps(own_set)
    def set_states(self: Any, model_param: Any, tensors: Mapping[str, Any]) -> None:
        # The number of steps comes with the groups of parameters, and is there already; formats have none here, or that
        # from before the checkpoint was read.
        known = self._get_main_param_and_optimizer_states(model_param)
        own_set(self, model_param, {**tensors, "step": known.get("step")})

    replace(DistributedOptimizer, "_set_main_param_and_optimizer_states", set_states)


def _with_state(state_dict: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(state_dict)
    def act(self: Any) -> Any:
        for group in self.optimizer.param_groups:
            for each in group["params"]:
                if not self.optimizer.state[each]:
                    moments = {name: torch.zeros_like(each, requires_grad=False) for name in ("exp_avg", "exp_avg_sq")}
                    self.optimizer.state[each] = {"step": torch.zeros(()), **moments}
        return state_dict(self)

    return act


def _counting_each(load: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(load)
    def act(self: Any, state_dict: Any) -> None:
        with torch.no_grad():
            load(self, state_dict)
        for state in self.optimizer.state.values():
            # Megatron gives all the same tensor, and each adds one to it.
            state["step"] = state["step"].clone()

    return act
