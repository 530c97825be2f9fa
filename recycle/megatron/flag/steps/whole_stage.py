"""Model and optimizer of a stage whose steps are Megatron's training code's, for a rank that comes back."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch

from recycle.megatron.flag.steps.ddp_parameters import DdpParameters
from recycle.megatron.flag.steps.group_steps import read_group_steps, write_group_steps
from recycle.runtime.step.checkpoint import give_state, stage_state

OTHERS, STEPS = "others/", "steps/"
"""How the parts are called that are no parameters, nor known of one."""


class WholeStage:
    """The parameters that are stepped, their moments, and whatever else the chunk holds; it is TakenOver.

    Args:
        model: the chunk, or all that a server holds.
        optimizer: Megatron's.
    """

    def __init__(self, model: torch.nn.Module, optimizer: Any) -> None:
        self._model = model
        # Where experts are divided among ranks, they have an optimizer of their own.
        chained = getattr(optimizer, "chained_optimizers", [optimizer])
        self._optimizers: list[torch.optim.Optimizer] = [each.optimizer for each in chained]
        self._parameters = DdpParameters(model.parameters(), self._optimizers[0])

    def state(self, _: int) -> dict[str, torch.Tensor]:
        """See TakenOver."""
        found = untrained(self._model)
        for number, (optimizer, parameters) in enumerate(self._stepped()):
            found |= stage_state(parameters, optimizer)
            found[f"{STEPS}{number}"] = read_group_steps(optimizer)
        return found

    def adopt(self, _: int, state: Mapping[str, torch.Tensor]) -> None:
        """See TakenOver."""
        for number, (optimizer, parameters) in enumerate(self._stepped()):
            names = tuple(f"/{name}" for name in parameters)
            give_state({key: each for key, each in state.items() if key.endswith(names)}, parameters, optimizer)
            write_group_steps(optimizer, state[f"{STEPS}{number}"])
        self._parameters.copy_back()
        adopt_untrained(self._model, state)

    def _stepped(self) -> Iterator[tuple[torch.optim.Optimizer, Mapping[str, torch.Tensor]]]:
        """Each optimizer, with the parameters that it steps by their names."""
        named = self._parameters.named(self._model)
        for optimizer in self._optimizers:
            own = {each for group in optimizer.param_groups for each in group["params"]}
            yield optimizer, {name: each for name, each in named.items() if each in own}


def untrained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a chunk holds that no optimizer steps, by name."""
    fixed = ((name, each.detach()) for name, each in model.named_parameters() if not each.requires_grad)
    return {f"{OTHERS}{name}": each for name, each in chain(fixed, model.named_buffers())}


def adopt_untrained(model: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Take that from what a peer gave."""
    for name, each in untrained(model).items():
        each.copy_(state[name])
