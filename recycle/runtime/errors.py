"""What can go wrong in a run."""

from collections.abc import Sequence

from recycle.errors import UserError


class RunError(UserError):
    """A run that cannot start or go on as it was asked for: the message says what to change."""


class InstructionFailed(RuntimeError):
    """An instruction raised; the message shows the rows of the list around it, the failing one marked."""


class ViewBroken(RuntimeError):
    """The iteration cannot be finished in this view; with those that are alive, it can be made again."""


class ConnectionLost(ViewBroken):
    """A transfer or a sum failed: somebody in it is gone, or gave it up."""


class NoAnswer(ConnectionLost):
    """Nothing came from the other end in time.

    Args:
        text: for people.
        partners: what the ranks are called that may be meant.
    """

    def __init__(self, text: str, partners: Sequence[str]) -> None:
        super().__init__(text)
        self.partners = tuple(partners)


class Interrupted(ViewBroken):
    """Somebody else noticed that the view is broken."""


class NotFinite(ViewBroken):
    """A gradient holds a value that is no finite number; made again, it may be one."""


def lost_before_view(life: int, cause: Exception) -> str:
    """What a server says that has lost the store before it could train.

    Args:
        life: of the server, counted from 0.
        cause: why.
    """
    when, remedy = ("this server was in a view", "join again") if life else ("the run began", "train again")
    return f"the store was lost before {when}: {cause}; {remedy}"
