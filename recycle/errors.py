"""The errors that a user can cause. Everything else that goes wrong is our own mistake, and an assertion."""


class UserError(ValueError):
    """Something a user gave cannot be used: the message names the field, the value and the remedy."""


class JobError(UserError):
    """A job description, a server name or a failed set that does not describe a runnable job."""


class PlanFileError(UserError):
    """A file that is not a readable plan or catalogue: truncated, of another version, or with a bad field."""


class NoPlanError(UserError):
    """No plan exists for this job and these failures, however long one searches."""
