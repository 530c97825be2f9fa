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
