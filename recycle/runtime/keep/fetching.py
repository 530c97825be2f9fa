"""Fetching: how a version is had from the keepers that have parts of it, rung by rung."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from recycle.runtime.errors import ConnectionLost
from recycle.runtime.keep.layout import Version
from recycle.runtime.keep.pieces import Room
from recycle.state.client import KeeperClient
from recycle.state.errors import BadCopy, KeeperLost
from recycle.state.ladder import Copy, StatePart, climb
from recycle.threads import map_apart

AT_ONCE = 32
"""How many keepers are asked at the same time what they have: those of hosts that are gone do not answer."""


def ask_all(keepers: Sequence[KeeperClient]) -> Sequence[Sequence[Copy] | KeeperLost]:
    """What keepers have, in their order, or why that cannot be said."""
    return map_apart(_ask, AT_ONCE, "asks a keeper", keepers)


class Fetching:
    """Gets a version from keepers, and takes another copy for one that is not as it was put.

    Args:
        keepers: all of them, by name.
        near: the name of the one on this host; empty where none is.
        pieces: how many each part was made into.
        warn: tells the user something.
    """

    def __init__(
        self, keepers: Mapping[str, KeeperClient], near: str, pieces: int, warn: Callable[[str], None]
    ) -> None:
        self._keepers = keepers
        self._near = near
        self._pieces = pieces
        self._warn = warn

    def fetch(self, step: int, parts: Sequence[StatePart], copies: Sequence[Copy]) -> tuple[Version, Collection[str]]:
        """Get a version.

        Args:
            step: which.
            parts: of it, all of one view.
            copies: what keepers have.

        Returns:
            It, and the keepers that it comes from.

        Raises:
            ConnectionLost: there are not enough copies of a part.
        """
        room = Room(step, self._pieces)
        rungs = [self._fetch_part(climb(copies, part, self._near), room) for part in parts]
        return room.version, {each for sources in rungs for each in sources}

    def _fetch_part(self, rungs: Sequence[Copy], room: Room) -> Collection[str]:
        """Get a part from the first rungs whose copies are as they were put: from one, or from as many as are needed.

        Returns:
            Which keepers those were.

        Raises:
            ConnectionLost: there are not so many.
        """
        sources: set[str] = set()
        for copy in rungs:
            keeper = self._keepers[copy.keeper]
            if room.has(copy.part):
                continue
            try:
                keeper.fetch(copy.part, partial(room.memory, copy))
                room.confirm(copy.part)
                sources.add(copy.keeper)
                if room.finish(copy.part):
                    return sources
            except BadCopy as error:
                self._warn(f"{error}; it is never trained on, and the next source is tried")
                self._drop(keeper, copy.part)
            except KeeperLost as error:
                self._warn(f"{copy.keeper}: {error}; the next source is tried")
        part = rungs[0].part
        if part.needed == 1:
            raise ConnectionLost(f"there is no copy of {part} that is as it was put")
        raise ConnectionLost(f"of {part.part} there are no {part.needed} pieces that are as they were put")

    def _drop(self, keeper: KeeperClient, part: StatePart) -> None:
        try:
            keeper.drop(part)
        except KeeperLost as error:
            self._warn(f"{keeper.name}: {error}")


def _ask(keeper: KeeperClient) -> Sequence[Copy] | KeeperLost:
    try:
        return keeper.copies()
    except KeeperLost as error:
        return error
