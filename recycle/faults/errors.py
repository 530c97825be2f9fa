"""What a user can get wrong about faults."""

from recycle.errors import UserError


class FaultError(UserError):
    """A fault, a fault file or a trace that cannot be injected into this job: the message names the remedy."""
