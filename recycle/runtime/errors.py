"""What can go wrong in a run."""

from recycle.errors import UserError


class RunError(UserError):
    """A run that cannot start or go on as it was asked for: the message says what to change."""


class InstructionFailed(RuntimeError):
    """An instruction raised; the message shows the rows of the list around it, the failing one marked."""


class InterruptedTransport(RuntimeError):
    """Transfers of an iteration that did not end are still in flight."""
