"""The names of the keys under which members write in the store, and how long each lives.

Nothing else knows them, but where process groups meet: that is below ``epoch/<n>/`` as well.
"""

from recycle.control.view import Member
from recycle.job import Server

RUN, OPENING, VIEW = "run", "opening", "view"

_OF_MEMBERS = {"death", "beat"}


def bell(epoch: int) -> str:
    """Ends a joiner's wait for a verdict."""
    return f"epoch/{epoch}/bell"


def turn(epoch: int, leader: Member) -> str:
    """Ends the wait for a leader: it has decided, or it is dead."""
    return f"epoch/{epoch}/turn/{leader}"


def alarm(epoch: int) -> str:
    """The alarm of an epoch."""
    return f"epoch/{epoch}/alarm"


def log(epoch: int) -> str:
    """What members report in an epoch, and who of them died."""
    return f"epoch/{epoch}/log"


def requests(epoch: int) -> str:
    """What joiners ask for in an epoch."""
    return f"epoch/{epoch}/requests"


def plan(epoch: int, author: Member) -> str:
    """The plan that a member offers for an epoch."""
    return f"epoch/{epoch}/plan/{author}"


def offer(epoch: int, member: Member, attempt: int, rank: int) -> str:
    """Calls a joiner's rank to whom its state is served."""
    return f"epoch/{epoch}/offer/{member}/{rank}/{attempt}"


def finished(epoch: int) -> str:
    """How many members have reached the end in an epoch."""
    return f"epoch/{epoch}/finished"


def end(epoch: int) -> str:
    """Ends the wait of those who have reached the end."""
    return f"epoch/{epoch}/end"


def death(member: Member | str) -> str:
    """How a member died."""
    return f"death/{member}"


def beat(member: Member, rank: int) -> str:
    """The signs of life of a member's rank."""
    return f"beat/{member}/{rank}"


def incarnation(server: Server) -> str:
    """The lives of a server, counted."""
    return f"incarnation/{server}"


def next_life(member: Member) -> str:
    """In which life a member's server comes back, where its ranks are started again one by one.

    It is never deleted, because the slowest of them may look for it at any time.
    """
    return f"life/{member}"


def is_outlived(key: str, epoch: int, names: set[str]) -> bool:
    """Whether nobody needs a key any more.

    Args:
        key: which.
        epoch: that the run is in.
        names: of who is in it, or has asked in it to be.
    """
    kind, _, rest = key.partition("/")
    if kind == "epoch":
        number = rest.partition("/")[0]
        return number.removeprefix("-").isdecimal() and int(number) < epoch
    return kind in _OF_MEMBERS and rest.partition("/")[0] not in names
