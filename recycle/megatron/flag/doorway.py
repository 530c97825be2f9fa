"""Versions of a stage into which one can come who has nothing: it takes over all that a peer has, at a boundary.

Only before an iteration, when the last step is made and surely right, is the state of a server all that another one
needs to go on beside it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch

from recycle.runtime.net.network import Network
from recycle.runtime.step.trainee import Versioned

STAGE, CODE = "stage/", "code/"


class TakenOver(Protocol):
    """What a server has to have to go on beside another one."""

    def state(self, step: int) -> Mapping[str, torch.Tensor]:
        """All of it before an iteration, by name."""

    def adopt(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        """Go on before an iteration with that of a peer."""


class Doorway:
    """Versions with such a way in; it is Versioned.

    Args:
        versions: of the stage.
        stage: model and optimizer.
        code: what the training code knows.
        arrive: called with the version when one who comes back holds it; None on any other server.

    """

    def __init__(
        self, versions: Versioned, stage: TakenOver, code: TakenOver, arrive: Callable[[int], None] | None
    ) -> None:
        self._arrive = arrive
        self._versions = versions
        self._parts = {STAGE: stage, CODE: code}
        self._step: int | None = None

    @contextmanager
    def opened(self, step: int) -> Iterator[None]:
        """Within the block, this is before an iteration: others can be let in."""
        self._step = step
        yield
        self._step = None

    def admits(self) -> bool:
        """Whether others can be let in just now, as far as it depends on this server."""
        return self._arrive is not None or self._step is not None

    @property
    def newest(self) -> int:
        """See Versioned."""
        return self._versions.newest

    @property
    def oldest(self) -> int:
        """See Versioned."""
        return self._versions.oldest

    def drop(self) -> None:
        """See Versioned."""
        self._versions.drop()

    def undo(self) -> None:
        """See Versioned."""
        self._versions.undo()

    def enter(self, network: Network, step: int) -> int:
        """See Versioned."""
        return self._versions.enter(network, step)

    def state(self) -> Mapping[str, torch.Tensor]:
        """See Versioned; at a boundary it is for somebody who has nothing."""
        step = self._step
        if step is None:
            return self._versions.state()
        return {f"{kind}{name}": each for kind, part in self._parts.items() for name, each in part.state(step).items()}

    def adopt(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        """See Versioned."""
        if self._arrive is None:
            self._versions.adopt(step, state)
            return
        for kind, part in self._parts.items():
            found = {name.removeprefix(kind): each for name, each in state.items() if name.startswith(kind)}
            part.adopt(step, found)
        self._arrive(step)
        self._arrive = None
