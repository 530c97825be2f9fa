"""What can go wrong with the agreement on who is in the run."""

from recycle.errors import UserError


class ControlError(UserError):
    """A setting, an address or something read from the store that cannot be used: the message says what to change."""


class StoreLost(RuntimeError):
    """The store cannot be used any more: the run can go on, but no failure can be survived until it is back."""


class StoreSilent(StoreLost):
    """Nothing has answered for as long as it was waited for; what answers and refuses is lost at once."""


class ChannelLost(Exception):
    """The other side of a connection is gone, or is not of this run."""
