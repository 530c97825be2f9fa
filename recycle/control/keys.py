"""The names of the keys under which members write in the store, and how long each lives.

Nothing else knows them, but where process groups meet: that is below ``epoch/<n>/``.
"""

from recycle.control.view import Member
from recycle.job import Server

RUN, OPENING, VIEW, ASKED = "run", "opening", "view", "asked"

_OF_EPOCHS = {"alarm", "bell", "report", "plan", "epoch", "offer"}
_OF_MEMBERS = {"death", "beat", "join", "finished"}


def bell(epoch: int) -> str:
    """Ends the wait for a verdict."""
    return f"bell/{epoch}"


def alarm(epoch: int) -> str:
    """The alarm of an epoch."""
    return f"alarm/{epoch}"


def report(epoch: int, member: Member | str) -> str:
    """What a member says in an epoch; what all say begins with that of nobody."""
    return f"report/{epoch}/{member}"


def plan(epoch: int, author: Member) -> str:
    """The plan that a member offers for an epoch."""
    return f"plan/{epoch}/{author}"


def offer(epoch: int, member: Member, attempt: int) -> str:
    """Calls a joiner to whom its state is served."""
    return f"offer/{epoch}/{member}/{attempt}"


def finished(member: Member) -> str:
    """In which epoch a member has reached the end."""
    return f"finished/{member}"


def death(member: Member | str) -> str:
    """How a member died; all deaths begin with that of nobody."""
    return f"death/{member}"


def beat(member: Member) -> str:
    """A member's signs of life."""
    return f"beat/{member}"


def join(member: str) -> str:
    """A joiner's request; all requests begin with that of nobody."""
    return f"join/{member}"


def incarnation(server: Server) -> str:
    """The lives of a server, counted."""
    return f"incarnation/{server}"


def is_outlived(key: str, epoch: int, names: set[str]) -> bool:
    """Whether nobody needs a key any more.

    Args:
        key: which.
        epoch: that the run is in.
        names: of who is in it, or still asks to be.
    """
    kind, _, rest = key.partition("/")
    number = rest.partition("/")[0]
    if kind in _OF_EPOCHS:
        return number.isdecimal() and int(number) < epoch
    return kind in _OF_MEMBERS and rest not in names
