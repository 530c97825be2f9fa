"""What can go wrong in a run."""

from collections.abc import Iterator
from contextlib import contextmanager

from recycle.control.errors import StoreLost
from recycle.errors import UserError


class RunError(UserError):
    """A run that cannot start or go on as it was asked for: the message says what to change."""


@contextmanager
def before_run() -> Iterator[None]:
    """Where the store is lost before there is a run, there will be none.

    Raises:
        RunError: it is lost.
    """
    try:
        yield
    except StoreLost as error:
        raise RunError(f"the run cannot begin: {error}; see what is said there, and start all again") from error


class InstructionFailed(RuntimeError):
    """An instruction raised; the message shows the rows of the list around it, the failing one marked."""


class InterruptedTransport(RuntimeError):
    """Transfers of an iteration that did not end are still in flight."""


class ViewBroken(RuntimeError):
    """The iteration cannot be finished in this view; with those that are alive, it can be made again."""


class ConnectionLost(ViewBroken):
    """A transfer or a sum failed: somebody in it is gone, or gave it up."""


class Interrupted(ViewBroken):
    """Somebody else noticed that the view is broken."""


class NotFinite(ViewBroken):
    """A gradient holds a value that is no finite number; made again, it may be one."""
