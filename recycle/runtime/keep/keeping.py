"""Keeping: what a server does so that keepers have its part of every version, and how it gets a version from them."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import torch

from recycle.control.view import View
from recycle.job import Server
from recycle.plan.instruction import Instruction, Op
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.keep.room import Room
from recycle.runtime.keep.snapshot import Snapshot
from recycle.state.client import KeeperClient
from recycle.state.errors import BadCopy, KeeperLost
from recycle.state.ladder import Copy, StatePart, climb, find_whole

REST = 10.0
"""Seconds for which nothing is put after a keeper was lost, so that a silent one does not hold up each iteration."""


class KeptStage(Protocol):
    """What is kept: a stage's versions."""

    @property
    def newest(self) -> int:
        """The present version."""

    @property
    def undone(self) -> int:
        """How many steps were taken back so far: the same version may be another state after that."""

    def state(self) -> Mapping[str, torch.Tensor]:
        """The present version, by name."""


class Keeping:
    """One server's part in it; it is Kept, and told of every instruction.

    A version is put from the first instruction after its step on, and is there before the gradients of its iteration
    are reduced, by when it is known to be right; the first version of a view before any other instruction.

    Args:
        keepers: those that keep this server's parts, its own host's first.
        server: whose.
        depth: P.
        source: the versions.
        view: gives the view in which the server works.
        warn: tells the user something.
    """

    def __init__(
        self,
        keepers: Sequence[KeeperClient],
        server: Server,
        depth: int,
        source: KeptStage,
        view: Callable[[], View],
        warn: Callable[[str], None],
    ) -> None:
        self._keepers = {each.name: each for each in keepers}
        self._near = keepers[0].name
        self._server = server
        self._depth = depth
        self._source = source
        self._view = view
        self._warn = warn
        self._snapshot: Snapshot | None = None
        self._begun: tuple[int, int, int] | None = None
        self._done: tuple[int, int] | None = None
        self._rests_until = 0.0

    # While it trains.

    def before(self, iteration: int, instruction: Instruction) -> None:
        """See Hooks."""
        view = self._view()
        due = view.epoch, self._source.newest
        if due == self._done:
            return
        begun = (*due, self._source.undone)
        if begun != self._begun:
            self.halt()
            if time.monotonic() < self._rests_until:
                self._done = due
                return
            peers = view.peers(self._server.stage)
            part = StatePart(self._server.stage, *due, peers.index(self._server), len(peers))
            self._begun, self._snapshot = begun, Snapshot([*self._keepers.values()], part, self._source.state())
        first = self._done is None or self._done[0] != view.epoch
        if first or instruction.op is Op.REDUCE:
            self._finish()
            self._done = due

    def after(self, iteration: int, instruction: Instruction, seconds: float) -> None:
        """See Hooks."""

    def halt(self) -> None:
        """See Kept."""
        snapshot, self._snapshot, self._begun = self._snapshot, None, None
        if snapshot is not None:
            snapshot.give_up()

    def _finish(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        assert snapshot is not None, "nothing was begun"
        try:
            snapshot.finish()
        except KeeperLost as error:
            self._rests_until = time.monotonic() + REST
            self._warn(f"the state is not kept in memory: {error}; it is tried again in {REST:g} s")

    # After a failure.

    def find_versions(self) -> tuple[tuple[int, ...], ...]:
        """See Kept."""
        whole = find_whole(self._copies())
        return tuple(tuple(whole.get(stage, ())) for stage in range(self._depth))

    def fetch(self, step: int) -> Mapping[str, torch.Tensor]:
        """See Kept."""
        copies = self._copies()
        parts = find_whole(copies).get(self._server.stage, {}).get(step, ())
        if not parts:
            raise ConnectionLost(f"no keeper has version {step} of stage {self._server.stage} any more")
        room = Room(step)
        for part in parts:
            self._fetch_part(climb(copies, part, self._near), room)
        return room.state

    def _copies(self) -> list[Copy]:
        """What all keepers have that can be reached."""
        found: list[Copy] = []
        for each in self._keepers.values():
            try:
                found.extend(each.copies())
            except KeeperLost as error:
                self._warn(f"{each.name}: {error}")
        return found

    def _fetch_part(self, rungs: Sequence[Copy], room: Room) -> None:
        """Get a part from the first rung whose copy is as it was put.

        Raises:
            ConnectionLost: there is none.
        """
        for copy in rungs:
            keeper = self._keepers[copy.keeper]
            try:
                keeper.fetch(copy.part, partial(room.memory, copy))
                room.confirm()
                return
            except BadCopy as error:
                self._warn(f"{error}; it is never trained on, and the next rung is taken")
                self._drop(keeper, copy.part)
            except KeeperLost as error:
                self._warn(f"{copy.keeper}: {error}; the next rung is taken")
        raise ConnectionLost(f"there is no copy of {rungs[0].part} that is as it was put")

    def _drop(self, keeper: KeeperClient, part: StatePart) -> None:
        try:
            keeper.drop(part)
        except KeeperLost as error:
            self._warn(f"{keeper.name}: {error}")
