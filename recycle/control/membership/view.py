"""The view: which servers are in the run, in which life of theirs, and in which epoch."""

import re
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple, Self

from recycle.control.membership.errors import ControlError
from recycle.job import Server
from recycle.plan.plan import Plan

_NAME = re.compile(r"W(\d{1,6})_(\d{1,6})#(\d{1,9})", re.ASCII)

# A verdict names all members, who are mostly those of the one before: so many names are read only once.
NAMES = 1 << 14


class Member(NamedTuple):
    """One life of a server. A server that was declared dead comes back as another member.

    Attributes:
        server: which server.
        incarnation: which of its lives, from 0.
    """

    server: Server
    incarnation: int

    def __str__(self) -> str:
        return f"{self.server}#{self.incarnation}"

    @classmethod
    @lru_cache(maxsize=NAMES)
    def parse(cls, text: str) -> Self:
        """Read a member's name, ``W<pipeline>_<stage>#<incarnation>``.

        Raises:
            ControlError: the text is not a member's name.
        """
        match = _NAME.fullmatch(text)
        if match is None:
            raise ControlError(
                f"member {text!r}: a member is written W<pipeline>_<stage>#<incarnation>, for example W1_2#0"
            )
        return cls(Server(int(match[1]), int(match[2])), int(match[3]))


class ServerRank(NamedTuple):
    """Which of the processes of a server this is: they compute together, and where one dies, the server is dead.

    Attributes:
        number: its place in the server, from 0. The first one speaks for the server.
        size: how many the server has, as every server of the run.
    """

    number: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether it speaks for the server."""
        return self.number == 0

    def of(self, name: object) -> str:
        """What people call it.

        Args:
            name: of its server.
        """
        return str(name) if self.size == 1 else f"{name} rank {self.number}"


SOLE = ServerRank()
"""Of a server that is one process."""


class View(NamedTuple):
    """The agreed set of members, and its number.

    Attributes:
        epoch: rises with every change of the set. Every group, tag and key carries it, so that nothing of an older
            view can be taken for something of this one.
        members: the members, by pipeline and then stage; no server twice.
    """

    epoch: int
    members: tuple[Member, ...]

    @classmethod
    def of(cls, plan: Plan, epoch: int = 0) -> Self:
        """The view in which a plan can run: its live servers, each in its first life."""
        return cls.among(plan.programs, epoch)

    @classmethod
    def among(cls, servers: Iterable[Server], epoch: int = 0) -> Self:
        """The view of some servers, each in its first life."""
        return cls(epoch, tuple(Member(server, 0) for server in sorted(servers)))

    @property
    def servers(self) -> tuple[Server, ...]:
        """The live servers, by pipeline and then stage."""
        return tuple(member.server for member in self.members)

    def rank(self, server: Server) -> int:
        """The place of a live server among all."""
        return self.servers.index(server)

    def peers(self, stage: int) -> tuple[Server, ...]:
        """The live servers of a stage, by pipeline."""
        return tuple(server for server in self.servers if server.stage == stage)

    def member(self, server: Server) -> Member:
        """The life in which a live server is."""
        return self.members[self.rank(server)]

    def names(self, member: Member) -> bool:
        """Whether a member is in it."""
        place = bisect_left(self.members, member)
        return self.members[place : place + 1] == (member,)
