"""Who takes part in a run: a process for each rank of each member."""

from collections.abc import Iterable
from typing import NamedTuple, Self

from recycle.control.membership.view import SOLE, Member, ServerRank
from recycle.job import Server

_RANK = " rank "


class Participant(NamedTuple):
    """One of them.

    Attributes:
        member: whose rank it is.
        rank: of the member's server.
    """

    member: Member
    rank: ServerRank = SOLE

    def __str__(self) -> str:
        return self.rank.of(self.member)

    @classmethod
    def parse(cls, text: str, ranks: int) -> Self:
        """Read a participant's name.

        Args:
            text: a member's name, and that of the rank where servers have several.
            ranks: how many they have.

        Raises:
            ControlError: the text is not a member's name.
        """
        member, _, number = text.partition(_RANK)
        return cls(Member.parse(member), ServerRank(int(number or 0), ranks))

    @classmethod
    def all_of(cls, member: Member, ranks: int) -> tuple[Self, ...]:
        """All ranks of a member.

        Args:
            member: whose.
            ranks: how many it has.
        """
        return tuple(cls(member, ServerRank(number, ranks)) for number in range(ranks))


def participants_of(members: Iterable[Member], ranks: int) -> tuple[Participant, ...]:
    """All ranks of some members, in their order.

    Args:
        members: whose.
        ranks: how many each has.
    """
    return tuple(each for member in members for each in Participant.all_of(member, ranks))


def members_of(participants: Iterable[Participant]) -> set[Member]:
    """The members of which any rank is among some participants."""
    return {each.member for each in participants}


def first_rank(server: Server, participants: Iterable[Participant]) -> Participant | None:
    """The first rank of a server in its last life, which is struck by what strikes the server; None if it has none."""
    return max((each for each in participants if each.member.server == server and each.rank.is_first), default=None)
