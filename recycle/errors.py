"""The errors that a user sees. Everything else that goes wrong is our own mistake, and an assertion."""


class UserError(ValueError):
    """Something a user gave cannot be used: the message names the field, the value and the remedy.

    Attributes:
        exit_status: that of a program which ends because of this.
    """

    exit_status: int = 2


class IllegalPlan(UserError):
    """A plan that can be read, and breaks a rule of what is legal."""

    exit_status = 1


class RunFailed(UserError):
    """A run that could be started, and did not come to its end."""

    exit_status = 1


class EndedBySignal(UserError):
    """A run that somebody told to end.

    Args:
        message: for the user.
        number: of the signal; the exit status is 128 more, as shells have it.

    Attributes:
        number: the same.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number
        self.exit_status = 128 + number


class EndedAtOnce(EndedBySignal):
    """The same, where it was not waited for what others make of it."""


class JobError(UserError):
    """A job description, a server name or a set of dead servers that does not describe a runnable job."""


class PlanFileError(UserError):
    """A file that is not a readable plan or catalogue: truncated, of another version, or with a bad field."""


class PlanningFailed(UserError):
    """What the planner made is no plan: our own mistake, and yet no assertion.

    A run that asks for a plan ends with this reason. An assertion would end its servers one by one, each when it is its
    turn to plan.
    """

    exit_status = 1


class NoPlanError(UserError):
    """No plan exists for this job and these dead servers, however long one searches."""
