"""The two versions of a stage's state that a server holds: that of now, and that before its last optimizer step.

Version i is what iteration i starts from. Nobody steps to i + 2 before every server has i + 1, because the gradients
of iteration i + 1 pass through every stage; so one version before the newest is all that recovery can ask for.
"""

from collections.abc import Sequence

import torch


class Versions:
    """Keeps the state before each optimizer step in a second set of tensors, which ``undo`` swaps with the first.

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
        tensors = [each.data for each in self._parameters] + [state[key] for state, key in self._fields]
        if [(each.shape, each.dtype) for each in self.copies] != [(each.shape, each.dtype) for each in tensors]:
            self.copies = [torch.empty_like(each) for each in tensors]
        if tensors:
            torch._foreach_copy_(self.copies, tensors)
        self._kept = self._begun = True

    def advance(self) -> None:
        """The optimizer has stepped."""
        self.newest += 1
        self._begun = False

    def undo(self) -> None:
        """Go back to the version before the newest one."""
        assert self._kept, f"version {self.newest - 1} is not held"
        self._swap()
        self.newest -= 1
        self.undone += 1

    def take_back(self) -> bool:
        """Where a step was begun that has not come to its end, make the state what it was; whether there was one."""
        if not self._begun:
            return False
        self._swap()
        return True

    def adopt(self, step: int) -> None:
        """The present state was replaced by that of a step."""
        self.newest = step
        self._kept = self._begun = False

    def _swap(self) -> None:
        for place, parameter in enumerate(self._parameters):
            parameter.data, self.copies[place] = self.copies[place], parameter.data
        known = set()
        for copy, (state, key) in enumerate(self._fields, len(self._parameters)):
            state[key], self.copies[copy] = self.copies[copy], state[key]
            known.add(id(state))
        for parameter, state in list(self._optimizer.state.items()):
            if id(state) not in known:
                # Before its first step, an optimizer knows nothing of a parameter.
                del self._optimizer.state[parameter]
        self._kept = self._begun = False
