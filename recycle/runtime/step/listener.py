"""Who wants to know of every version of a stage's state, as it becomes of the one before."""

from collections.abc import Sequence
from typing import Protocol

import torch


class Listener(Protocol):
    """Is told of every optimizer step."""

    def stepping(self, parts: Sequence[torch.Tensor]) -> None:
        """The next optimizer step is made from these, and that is right. They change after this has returned."""

    def undone(self) -> None:
        """The last step that was told, or that was made before anybody listened, was taken back."""


class StepFeed:
    """Tells a listener of the steps of a stage that may still turn out wrong when they are made.

    Attributes:
        listener: who listens; None for nobody.
    """

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self._before: Listener | None = None

    def guess(self) -> None:
        """A step is made that may turn out wrong: who begins to listen after it has the state with that step."""
        self._before = self.listener

    @property
    def heard_before(self) -> bool:
        """Whether the present listener has the state without the step that was guessed."""
        return self._before is self.listener

    def undone(self) -> None:
        """The last step was taken back."""
        if self.listener is not None:
            self.listener.undone()
