"""Model and optimizer of a stage whose steps are Megatron's training code's, for a rank that comes back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from recycle.runtime.step.checkpoint import give_state, stage_state
from recycle.runtime.step.main_parameters import EVERYTHING, MainParameters

SETTINGS = ("lr", "weight_decay")
"""What Megatron's scheduler changes in an optimizer's groups between two iterations."""

COUNT, UNKNOWN = "step", -1
"""What a group calls its count, and what stands for the count of a group that has none."""

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


def read_group_steps(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """The counts of an optimizer's groups, in their order."""
    return torch.tensor([int(group.get(COUNT, UNKNOWN)) for group in optimizer.param_groups])


def write_group_steps(optimizer: torch.optim.Optimizer, counts: torch.Tensor) -> None:
    """Have an optimizer's groups go on from such counts."""
    for group, count in zip(optimizer.param_groups, counts.tolist(), strict=True):
        if count == UNKNOWN:
            group.pop(COUNT, None)
        else:
            group[COUNT] = count


def read_settings(optimizer: Any) -> list[dict[str, Any]]:
    """What Megatron's scheduler has set in each of an optimizer's groups."""
    return [{name: group[name] for name in SETTINGS if name in group} for group in optimizer.param_groups]


def write_settings(optimizer: Any, settings: Sequence[dict[str, Any]]) -> None:
    """Set it as it was read."""
    for group, values in zip(optimizer.param_groups, settings, strict=True):
        group.update(values)


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
        self._settings[version] = read_settings(self._optimizer)

    def prepare(self, optimizer: torch.optim.Optimizer, version: int) -> None:
        """Have the next step made as the scheduler had it for the one from a version."""
        self._present = read_settings(self._optimizer)
        write_settings(self._optimizer, self._settings[version])

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
        write_settings(self._optimizer, self._present)
