"""Where members are, and between which of them no data comes through, as it is kept in the store."""

from collections.abc import Iterable
from typing import Annotated

import msgspec

from recycle.control.board import keys
from recycle.control.board.part import BoardPart
from recycle.control.membership.messages import MemberName
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member
from recycle.control.store.log import Log

_Text = Annotated[str, msgspec.Meta(max_length=300)]


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
