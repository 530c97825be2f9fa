"""The two versions of a stage's state that a server holds: that of now, and that before its last optimizer step.

Version i is what iteration i starts from. Nobody steps to i + 2 before every server has i + 1, because the gradients
of iteration i + 1 pass through every stage; so one version before the newest is all that recovery can ask for.
"""

from collections.abc import Sequence

import torch

from recycle.runtime.device import room_in_host_memory


class Versions:
    """Keeps the state before each optimizer step in host memory, from which ``undo`` copies it back.

    A GPU copies in the order in which it is told to step, so that nobody waits for it.

    Args:
        parameters: what the optimizer steps, and whatever else a step changes.
        optimizer: whose state belongs to it.

    Attributes:
        newest: how many optimizer steps the present state has behind it.
        copies: what is kept of the state before the last step, or will be.
        undone: how many steps were taken back so far.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
        self.newest = 0
        self.undone = 0
        self._parameters = list(parameters)
        self._optimizer = optimizer
        self._names: list[tuple[int, str]] = []
        self.copies: list[torch.Tensor] = []
        self._kept = False

    @property
    def oldest(self) -> int:
        """The oldest version that is held."""
        return self.newest - self._kept

    def keep(self) -> None:
        """Copy the present state, for the optimizer is about to change it in place."""
        names = [
            (place, key)
            for place, parameter in enumerate(self._parameters)
            for key, value in self._optimizer.state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor)
        ]
        tensors = [each.data for each in self._parameters] + [self._state(*name) for name in names]
        if names != self._names or len(self.copies) != len(tensors):
            self._names = names
            self.copies = [room_in_host_memory(each) for each in tensors]
        if tensors:
            torch._foreach_copy_(self.copies, tensors, non_blocking=True)
        self._kept = True

    def advance(self) -> None:
        """The optimizer has stepped."""
        self.newest += 1

    def undo(self) -> None:
        """Go back to the version before the newest one."""
        assert self._kept, f"version {self.newest - 1} is not held"
        tensors = [each.data for each in self._parameters] + [self._state(*name) for name in self._names]
        if tensors:
            torch._foreach_copy_(tensors, self.copies, non_blocking=True)
        stepped = {place for place, _ in self._names}
        for place, parameter in enumerate(self._parameters):
            if place not in stepped:
                # Before its first step, an optimizer knows nothing of a parameter.
                self._optimizer.state.pop(parameter, None)
        self.newest -= 1
        self.undone += 1
        self._kept = False

    def adopt(self, step: int) -> None:
        """The present state was replaced by that of a step."""
        self.newest = step
        self._kept = False

    def _state(self, place: int, key: str) -> torch.Tensor:
        value: torch.Tensor = self._optimizer.state[self._parameters[place]][key]
        return value
