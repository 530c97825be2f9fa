"""What a transfer carries: the name under which both of its ends know it."""

from enum import IntEnum

import msgspec


class Carried(IntEnum):
    """A kind of content."""

    OUTPUT = 0
    """What a stage computed from a micro-batch, for the next stage."""
    GRADIENT = 1
    """The gradient of that, for the stage before."""
    TOKENS = 2
    """The number of tokens in the whole batch."""
    STATE = 3
    """A part of a stage's state, or of its gradient."""


class TransferKey(msgspec.Struct, frozen=True):
    """What a transfer carries. Both ends of a link start its transfers in the same order and with the same keys.

    The order alone tells transfers apart, so a transport that knows nothing but order needs no more than that. The key
    says what is meant, for transports that can find out whether both ends mean the same, and for people.

    Attributes:
        carried: the kind.
        home: of the micro-batch, where it is of one.
        micro_batch: its place in its home pipeline.
        boundary: between which stages, by the lower one; two servers may meet at several, where they hold several.
    """

    carried: Carried
    home: int = 0
    micro_batch: int = 0
    boundary: int = 0


TOKENS = TransferKey(Carried.TOKENS)
STATE = TransferKey(Carried.STATE)
