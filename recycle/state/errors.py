"""What goes wrong with copies in memory."""

from recycle.control.membership.errors import ChannelLost
from recycle.errors import UserError


class StateError(UserError):
    """Copies in memory that cannot be had as they were asked for."""


class KeeperLost(ChannelLost):
    """A keeper cannot be reached, does not answer, or is not of this run."""


class Refused(KeeperLost):
    """A keeper does not do what it was asked, and can be asked for something else."""


class BadCopy(Exception):
    """What a keeper has of a part is not as it was put."""
