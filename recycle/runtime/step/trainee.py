"""What recovery knows of a server's training: something that can be taken from view to view."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from recycle.plan.plan import Plan
from recycle.record.recorder import Recorder
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.notices import NoticeExchange
from recycle.runtime.net.network import Network


class Listener(Protocol):
    """Who wants to know how versions become of each other."""

    def stepping(self, parts: Sequence[torch.Tensor]) -> None:
        """The next optimizer step is made from these, and that is right. They change after this has returned."""

    def undone(self) -> None:
        """The last step that was told, or that was made before anybody listened, was taken back."""


class Trainee(Protocol):
    """One server's training.

    Attributes:
        recorder: what was executed.
    """

    recorder: Recorder

    @property
    def newest(self) -> int:
        """How many optimizer steps the present state has behind it."""

    @property
    def oldest(self) -> int:
        """The oldest version that it can go back to."""

    @property
    def last(self) -> int:
        """The step at which training ends."""

    @property
    def gradients(self) -> Sequence[torch.Tensor]:
        """Where gradients are added up."""

    def drop(self) -> None:
        """Forget the iteration that was not finished: gradients, graphs, transfers."""

    def undo(self) -> None:
        """Go back to the version before the newest."""

    def enter(self, network: Network, step: int) -> int:
        """Enter a view: find out with all others whether the last step was right, and make it so.

        Args:
            network: of the view.
            step: the version that a server has or will get from a peer.

        Returns:
            The version that it is: one less if that step has to be made again, and so has the iteration before it.

        Raises:
            ViewBroken: somebody is gone.
        """

    def state(self) -> Mapping[str, torch.Tensor]:
        """The newest version, by name."""

    def adopt(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        """Take a version from a peer of the stage."""

    def listen(self, listener: Listener | None) -> None:
        """Tell somebody of every step from now on; None for nobody."""

    def follow(self, parts: Sequence[torch.Tensor]) -> None:
        """Make the step that a peer of the stage made from these; the result is the same to the bit."""

    def load(self, step: int) -> None:
        """Take the version of a checkpoint."""

    def durable(self) -> int | None:
        """The newest step of which there is a checkpoint."""

    def connect(self, plan: Plan, network: Network, hooks: Sequence[Hooks], notices: NoticeExchange | None) -> None:
        """Work by a plan over a network from now on."""

    def between(self, step: int, *, save: bool, settle: bool) -> None:
        """What is due before an iteration: a checkpoint, a look at held-out data. All servers come here.

        Args:
            step: the iteration.
            save: make a checkpoint though none is due.
            settle: make sure that the last step is right; all servers ask for it, or none.

        Raises:
            ViewBroken: somebody is gone.
        """

    def iterate(self, step: int) -> None:
        """Make an iteration, and tell of it.

        Raises:
            ViewBroken: somebody is gone.
        """
