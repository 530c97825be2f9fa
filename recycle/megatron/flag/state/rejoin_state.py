"""Versions of a stage that a server without any state can enter: it takes over all that a peer has, at a boundary.

Only before an iteration, when the last step is made and surely right, is the state of a server all that another one
needs to go on beside it. Where the state is kept in memory, what the training code knew there is remembered, so that it
can be taken over later as well: model and optimizer stay as they are until the iteration ends.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch

from recycle.megatron.flag.world.progress import VERSIONS
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.join.handover import pack, unpack
from recycle.runtime.keep.layout import FIRST, below
from recycle.runtime.net.network import Network
from recycle.runtime.step.trainee import Versioned

STAGE, CODE = "stage/", "code/"

REMEMBERED = f"{FIRST}code"
"""The name under which goes what a training code knew."""

ROOM = 1 << 18
"""Bytes for that: all peers have as many, whatever each of them knows."""


class TakenOver(Protocol):
    """What a server has to have to go on beside another one."""

    def state(self, version: int) -> Mapping[str, torch.Tensor]:
        """All of it at a version, before an iteration, by name."""

    def adopt(self, version: int, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from a version with that of a peer."""


class RejoinState:
    """Versions with such a way in; it is Versioned.

    Args:
        versions: of the stage.
        stage: model and optimizer.
        code: what the training code knows.
        arrives: whether this is a rank that comes back, which is in no view yet.
        arrive: called with the version when such a rank holds it.
    """

    def __init__(
        self,
        versions: Versioned,
        stage: TakenOver,
        code: TakenOver,
        arrives: Callable[[], bool],
        arrive: Callable[[int], None],
    ) -> None:
        self._arrives = arrives
        self._arrive = arrive
        self._versions = versions
        self._parts = {STAGE: stage, CODE: code}
        self._open: int | None = None
        self._remembered: dict[int, torch.Tensor] = {}

    def remember(self, version: int) -> None:
        """The iteration after a version begins, which a server that has nothing may come to until two more are done."""
        before = {each: self._remembered[each] for each in self._remembered if each + VERSIONS > version}
        self._remembered = before | {version: pack(version, self._parts[CODE].state(version), ROOM)}

    def whole(self) -> Mapping[str, torch.Tensor]:
        """The present version as it is before its iteration, for a server without any state; it was remembered."""
        version = self._versions.newest
        stage = self._parts[STAGE].state(version)
        return {REMEMBERED: self._remembered[version], **{f"{STAGE}{name}": each for name, each in stage.items()}}

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Within the block, this is before an iteration: others can be let in."""
        self._open = self._versions.newest
        yield
        self._open = None

    def admits(self) -> bool:
        """Whether others can be let in just now, as far as it depends on this server."""
        return self._open is not None

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
        """See Versioned; at a boundary it is for a server without any state.

        Elsewhere as well, where the step after it was taken back or is not made, and it is remembered: a server
        that lacks it has no state, or another version.
        """
        versions = self._versions
        # All may have to go back from there, if a stage is lost meanwhile.
        if self._open == versions.newest:
            whole = {kind: part.state(versions.newest) for kind, part in self._parts.items()}
            return {f"{kind}{name}": each for kind, state in whole.items() for name, each in state.items()}
        if versions.newest == versions.oldest and versions.newest in self._remembered:
            return self.whole()
        return versions.state()

    def adopt(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        """See Versioned; a server that has gone on with its training code takes over model and optimizer alone.

        Raises:
            ConnectionLost: this server comes back, and that is not all that it needs.
        """
        parts = {kind: below(kind, state) for kind in self._parts}
        if not self._arrives():
            if parts[STAGE]:
                self._parts[STAGE].adopt(step, parts[STAGE])
            self._versions.adopt(step, state)
            return
        if REMEMBERED in state:
            parts[CODE] = unpack(step, state[REMEMBERED])
        if missing := " and ".join(kind for kind in parts if not parts[kind]):
            raise ConnectionLost(f"a peer sends a state that cannot be read: {missing}")
        for kind, part in self._parts.items():
            part.adopt(step, parts[kind])
        # Before it begins an iteration itself, others may need it as well.
        self._remembered[step] = pack(step, parts[CODE], ROOM)
        self._arrive(step)
