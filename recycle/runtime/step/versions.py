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
        parameters: what the optimizer steps.
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
        self._fields: list[tuple[dict[str, torch.Tensor], str]] = []
        self.copies: list[torch.Tensor] = []
        self._kept = self._begun = False

    @property
    def oldest(self) -> int:
        """The oldest version that is held."""
        return self.newest - self._kept

    def keep(self) -> None:
        """Copy the present state, for the optimizer is about to change it in place."""
        self._fields = [
            (state, key)
            for state in self._optimizer.state.values()
            for key, value in state.items()
            if isinstance(value, torch.Tensor)
        ]
        tensors = self._state()
        if [(each.shape, each.dtype) for each in self.copies] != [(each.shape, each.dtype) for each in tensors]:
            self.copies = [room_in_host_memory(each) for each in tensors]
        if tensors:
            torch._foreach_copy_(self.copies, tensors, non_blocking=True)
        self._kept = self._begun = True

    def advance(self) -> None:
        """The optimizer has stepped."""
        self.newest += 1
        self._begun = False

    def undo(self) -> None:
        """Go back to the version before the newest one."""
        assert self._kept, f"version {self.newest - 1} is not held"
        self._restore()
        self.newest -= 1
        self.undone += 1

    def take_back(self) -> bool:
        """Where a step was begun that has not come to its end, make the state what it was; whether there was one."""
        if not self._begun:
            return False
        self._restore()
        return True

    def adopt(self, step: int) -> None:
        """The present state was replaced by that of a step."""
        self.newest = step
        self._kept = self._begun = False

    def _state(self) -> list[torch.Tensor]:
        return [each.data for each in self._parameters] + [state[key] for state, key in self._fields]

    def _restore(self) -> None:
        tensors = self._state()
        if tensors:
            torch._foreach_copy_(tensors, self.copies, non_blocking=True)
        known = {id(state) for state, _ in self._fields}
        for parameter, state in list(self._optimizer.state.items()):
            if id(state) not in known:
                # Before its first step, an optimizer knows nothing of a parameter.
                del self._optimizer.state[parameter]
        self._kept = self._begun = False
