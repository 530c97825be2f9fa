"""Who has reached the end of training, as it is kept in the store."""

import time

from recycle.control.board import keys
from recycle.control.board.part import BoardPart
from recycle.control.membership.view import Member, View
from recycle.control.store.sealed_store import STRANGE, SealedStore


class EndBoard(BoardPart):
    """Who has reached the end of training in an epoch, and whether all are told to end before it.

    Nobody leaves before all have, so whoever dies until then is missed by everybody, and nobody after it.

    Args:
        sealed: the store.
    """

    def __init__(self, sealed: SealedStore) -> None:
        super().__init__(sealed)
        self._reached: tuple[int, set[Member]] = -1, set()
        self._said: str | None = None

    def call_off(self, epoch: int, cause: str) -> None:
        """Tell all members of an epoch to end at a boundary between iterations; in a later one they have to be called.

        Args:
            epoch: that the run is in.
            cause: why, in a word.
        """
        self._sealed.write(keys.TOLD, cause)
        self._sealed.plain.set(keys.call(epoch), b"")

    def called_off(self) -> str:
        """Why all are told to end; empty if they are not."""
        return self._sealed.read(keys.TOLD, str) or ""

    def reach(self, view: View, member: Member) -> None:
        """Say that a member of a view has reached the end of training."""
        self._said = keys.finished(view.epoch, member)
        self._sealed.write(self._said, True)
        if self.is_reached(view):
            self._sealed.plain.set(keys.end(view.epoch), b"")

    def is_reached(self, view: View) -> bool:
        """Whether all members have."""
        # Not the bell: the last one may have died before it rang.
        if self._reached[0] != view.epoch:
            self._reached = view.epoch, set()
        reached = self._reached[1]
        left = [each for each in view.members if each not in reached]
        # Most ask while somebody is still on the way, whom one request finds; twice as many in each where nobody is.
        number = 1
        while left:
            some = {each: keys.finished(view.epoch, each) for each in left[:number]}
            found = self._sealed.read_all(some, bool)
            reached.update(found)
            if len(found) < len(some):
                return False
            left, number = left[number:], 2 * number
        return True

    def wait(self, view: View, timeout: float) -> bool:
        """The same, after all have or a time in seconds is over. The connection is busy for that long."""
        rung = self._sealed.plain.wait(keys.end(view.epoch), timeout) is not None
        if self.is_reached(view):
            return True
        if rung:
            time.sleep(min(timeout, STRANGE))  # a stranger's
        if self._said is not None:
            # What this member has said may have been taken away, and the others wait for it.
            self._sealed.write_once(self._said, True)
        return False
