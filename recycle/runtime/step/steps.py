"""Which of a stage's peers steps what: all of them everything, or each of them its shards."""

import torch

from recycle.runtime.net.network import Network
from recycle.runtime.step.main_parameters import MainParameters


class PeerSteps:
    """How a server's part in an optimizer step is made, and what it holds of the optimizer's state for it.

    These are of a server whose peers all hold all of their stage's state, and make the same steps.

    Args:
        main: what is stepped.
        optimizer: of it.
    """

    def __init__(self, main: MainParameters, optimizer: torch.optim.Optimizer) -> None:
        self._main = main
        self._optimizer = optimizer

    def connect(self, network: Network) -> None:
        """Work with the peers of a view from now on."""

    def begin(self) -> None:
        """A step is about to be made."""

    def make(self, which: slice) -> None:
        """Step with the gradients in use. All peers call it, and have these parameters after it.

        Args:
            which: of the main parameters; those of some of the server's chunks.

        Raises:
            ViewBroken: one of them is gone; the state is of no version then.
        """
        self._main.step(self._optimizer, which)

    def undo(self) -> None:
        """The state is again what it was when the last step began."""

    def adopt(self, *, whole: bool) -> None:
        """The state was replaced.

        Args:
            whole: whether that was the whole one, and not only what all peers hold.
        """
