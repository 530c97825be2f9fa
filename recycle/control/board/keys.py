"""The names of the keys under which members write in the store, and how long each lives.

Nothing else knows them, but where process groups meet: that is below ``epoch/<n>/`` as well.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member
from recycle.job import Server

RUN, OPENING, VIEW, EPOCH, KEEPERS, TOLD = "run", "opening", "view", "epoch", "keepers", "told"
COMPLAINTS = "complaints"

PROBE = "probe"
"""Written again and again, to find out whether the store takes what is written."""

_DIGITS = 18
"""So many an epoch has at most, or the number of a life. Strangers may give keys any name."""

WANTED = "wanted"
"""A member that comes back misses a note; members put their notes back, and delete this."""

LASTING = (RUN, OPENING, KEEPERS)
"""What a run needs for as long as it goes on, and tells once or seldom."""


def note(name: str) -> str:
    """What the first process tells all others at the start, and every one that comes back needs."""
    return f"notes/{name}"


def bell(epoch: int) -> str:
    """Ends a joiner's wait for a verdict."""
    return f"epoch/{epoch}/bells/verdict"


def turn(epoch: int, leader: Member) -> str:
    """Ends the wait for a leader: it has decided, or it is dead."""
    return f"epoch/{epoch}/bells/{leader}"


def call(epoch: int) -> str:
    """Ends the wait of all members: there is an alarm, or somebody asks to be let in, or all are told to end."""
    return f"epoch/{epoch}/bells/call"


def alarm(epoch: int) -> str:
    """The alarm of an epoch."""
    return f"epoch/{epoch}/alarm"


def stop(epoch: int, participant: Participant) -> str:
    """How far a member's rank was in its list when it heard the alarm of an epoch."""
    return f"epoch/{epoch}/stop/{participant.member}/{participant.rank.number}"


def between(epoch: int, member: Member) -> str:
    """A member was in no iteration when it heard the alarm of an epoch."""
    return f"epoch/{epoch}/between/{member}"


def log(epoch: int) -> str:
    """What members report in an epoch, and who of them died."""
    return f"epoch/{epoch}/log"


def requests(epoch: int) -> str:
    """What joiners ask for in an epoch."""
    return f"epoch/{epoch}/requests"


def move(epoch: int) -> str:
    """Who is to hold which chunks in the next epoch, as who leads wants it."""
    return f"epoch/{epoch}/move"


def plan(epoch: int, author: Member) -> str:
    """The plan that a member offers for an epoch."""
    return f"epoch/{epoch}/plan/{author}"


def offer(epoch: int, member: Member, attempt: int, rank: int) -> str:
    """Calls a joiner's rank to whom its state is served."""
    return f"epoch/{epoch}/offer/{member}/{rank}/{attempt}"


def finished(epoch: int, member: Member) -> str:
    """A member has reached the end in an epoch."""
    return f"epoch/{epoch}/finished/{member}"


def leaving(epoch: int, member: Member) -> str:
    """A member knows that all have reached the end in an epoch."""
    return f"epoch/{epoch}/leaving/{member}"


def end(epoch: int) -> str:
    """Ends the wait of those who have reached the end."""
    return f"epoch/{epoch}/end"


def death(member: Member | str) -> str:
    """How a member died."""
    return f"death/{member}"


def home(participant: Participant) -> str:
    """The host that a member's rank is on."""
    return f"home/{participant.member}/{participant.rank.number}"


def whereabouts(participant: Participant) -> str:
    """The address of a member's rank, and the name of its host."""
    return f"whereabouts/{participant.member}/{participant.rank.number}"


def gone(participant: Participant) -> str:
    """Nothing of a member's rank runs any more."""
    return f"gone/{participant.member}/{participant.rank.number}"


def beat(host: str) -> str:
    """A host's signs of life."""
    return f"beat/{host}"


def incarnation(server: Server) -> str:
    """The number of a server's last life."""
    return f"incarnation/{server}"


def next_life(member: Member) -> str:
    """In which life a member's server comes back, where its ranks are started again one by one.

    It is never deleted, because the slowest of them may look for it at any time.
    """
    return f"life/{member}"


def replacement(member: Member) -> str:
    """In which life a member's server comes back in processes that were started anew; never deleted, as above."""
    return f"replacement/{member}"


def taken(participant: Participant) -> str:
    """Which of the processes that were started anew is a member's rank; never deleted, as above."""
    return f"taken/{participant.member}/{participant.rank.number}"


class Needed(NamedTuple):
    """Whose keys are still needed.

    Attributes:
        lives: in which life each server is that is in the run, or has asked to be, by its name.
        hosts: that they are on.
    """

    lives: Mapping[str, int]
    hosts: frozenset[str]

    @classmethod
    def by(cls, members: Iterable[Member], hosts: Iterable[str]) -> Self:
        """What some members on some hosts need."""
        return cls({str(each.server): each.incarnation for each in sorted(members)}, frozenset(hosts))


def is_outlived(key: str, epoch: int, needed: Needed) -> bool:
    """Whether nobody needs a key any more.

    Args:
        key: which.
        epoch: that the run is in.
        needed: by whom others are.
    """
    kind, _, rest = key.partition("/")
    if kind == "epoch":
        number = rest.partition("/")[0]
        return _is_number(number.removeprefix("-")) and int(number) < epoch
    if kind in ("home", "whereabouts", "gone", "death"):
        # They are written once, maybe long before their member asks for anything, or any other rank of it looks.
        server, _, life = rest.partition("/")[0].partition("#")
        return _is_number(life) and int(life) < needed.lives.get(server, 0)
    return kind == "beat" and rest not in needed.hosts


def _is_number(text: str) -> bool:
    """Whether a part of a key is an epoch, or the number of a life."""
    return text.isdecimal() and len(text) <= _DIGITS
