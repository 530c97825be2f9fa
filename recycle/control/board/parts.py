"""The small parts of the board: where the members of a run are, who has reached its end, and notes from its start."""

import time
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from recycle.control.board import keys
from recycle.control.membership.messages import MemberName
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member, View
from recycle.control.store.log import Log
from recycle.control.store.sealed_store import STRANGE, SealedStore

LINGERS = 2.0
"""Seconds for which a member that may leave waits until the others know that they may, too."""

AT_ONCE = 64
"""Members that it asks about at once: there may be thousands."""

_Text = Annotated[str, msgspec.Meta(max_length=300)]


class BoardPart:
    """What members read and write of one subject.

    Args:
        sealed: the store.
    """

    def __init__(self, sealed: SealedStore) -> None:
        self._sealed = sealed


class Whereabouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a member's rank is.

    Attributes:
        name: of its host, for people.
        host: what all processes of the host call it, and those of no other one.
        address: at which others reach it.
    """

    name: _Text
    host: _Text
    address: _Text


class Complaint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A member says that nothing comes through between it and another one.

    Attributes:
        member: who says so.
        other: the other one.
        over: it is well again.
    """

    member: MemberName
    other: MemberName
    over: bool = False

    def __post_init__(self) -> None:
        Member.parse(self.member)
        Member.parse(self.other)


class LinkBoard(BoardPart):
    """Where members are, and between which of them no data comes through."""

    def settle(self, participant: Participant, whereabouts: Whereabouts) -> None:
        """Say where a member's rank is."""
        self._sealed.write(keys.whereabouts(participant), whereabouts)

    def whereabouts(self, participants: Iterable[Participant]) -> dict[Participant, Whereabouts]:
        """Where each one is, without those that have not said it."""
        return self._sealed.read_all({each: keys.whereabouts(each) for each in participants}, Whereabouts)

    def complaints(self) -> Log[Complaint]:
        """All that were made in the run."""
        return Log(self._sealed, keys.COMPLAINTS, Complaint)


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

    def linger(self, view: View, member: Member) -> None:
        """Stay until all others know of the end too, for a moment at most.

        A stranger may have taken away what this member has said, and no other one puts it back.
        """
        self._sealed.write(keys.leaving(view.epoch, member), True)
        deadline, left = time.monotonic() + LINGERS, [each for each in view.members if each != member]
        while left and time.monotonic() < deadline:
            self._sealed.write_once(keys.finished(view.epoch, member), True)
            some = {each: keys.leaving(view.epoch, each) for each in left[:AT_ONCE]}
            found = self._sealed.read_all(some, bool)
            left = [each for each in left if each not in found]
            if len(found) < len(some):
                time.sleep(STRANGE)


class NoteBoard(BoardPart):
    """What the first process tells all others at the start, and every one that comes back needs.

    All members know these notes, so each can put back what a stranger has taken away.

    A note may be large. So members look only whether one is wanted.
    """

    def tell(self, name: str, content: bytes) -> None:
        """Write a note."""
        self._sealed.write(keys.note(name), content)

    def read(self, name: str, timeout: float = 0.0) -> bytes | None:
        """A note, as soon as it is there; None if it is not after some seconds, for which the connection is busy."""
        return self._sealed.read(keys.note(name), bytes, timeout)

    def ask(self) -> None:
        """Have members put their notes back."""
        self._sealed.write(keys.WANTED, True)

    def put_back(self, notes: Mapping[str, bytes]) -> None:
        """Write the notes that are missing, as somebody has asked.

        Args:
            notes: all that this member knows, by name.
        """
        if notes:
            self._sealed.write_all_once({keys.note(name): content for name, content in notes.items()})
            self._sealed.plain.delete(keys.WANTED)
