"""Redundancy: how many hosts hold something of each part, and how many of them are enough to have it."""

import re
from typing import Annotated, Self

import msgspec

from recycle.state.errors import StateError
from recycle.wording import plural

LARGEST = 32
"""Pieces of a part at most: so many does the library of the erasure code tell apart."""

OFF = "off"

Pieces = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]


class Redundancy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part is kept as pieces, each on another host.

    Where one is enough, each piece is a copy. Where more are needed, the first of them are the part itself, cut up, and
    the others are parity (REFT, arXiv 2310.12670): as many hosts as those may be lost.

    Attributes:
        needed: so many pieces, whichever, rebuild the part.
        pieces: how many there are.
    """

    needed: Pieces
    pieces: Pieces

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read ``copies=2``, ``parity=4+1``, or ``off``, which is none.

        Raises:
            StateError: it is something else.
        """
        if text == OFF:
            return None
        found = re.fullmatch(
            r"copies=(?P<copies>[0-9]{1,3})|parity=(?P<needed>[0-9]{1,3})\+(?P<spare>[0-9]{1,3})", text
        )
        if found is not None and found["copies"]:
            needed, spare, least = 1, int(found["copies"]) - 1, 0
        elif found is not None:
            needed, spare, least = int(found["needed"]), int(found["spare"]), 1
        if found is None or spare < least or needed <= least or needed + spare > LARGEST:
            raise StateError(
                f"{text}: give off, copies=N with N from 1, or parity=K+M with K from 2 and M from 1, of {LARGEST} "
                f"hosts at most"
            )
        return cls(needed, needed + spare)

    @property
    def spare(self) -> int:
        """How many pieces may be lost."""
        return self.pieces - self.needed

    def lacks_hosts(self, hosts: int) -> str:
        """Why so many hosts are too few, each of which has one piece at most; empty if they are enough."""
        return "" if self.pieces <= hosts else f"it takes {plural(self.pieces, 'host')}, and this run has {hosts}"

    def taken(self, size: int) -> int:
        """How many bytes all pieces of a part have together.

        Args:
            size: of the part, in bytes.
        """
        return self.pieces * piece_size(size, self.needed)

    def sent(self, size: int) -> int:
        """How many of them go to other hosts: all but those of one piece, which stays on the host of the part."""
        return (self.pieces - 1) * piece_size(size, self.needed)

    def __str__(self) -> str:
        return f"copies={self.pieces}" if self.needed == 1 else f"parity={self.needed}+{self.spare}"


def piece_size(size: int, needed: int) -> int:
    """How many bytes a piece of a part has; where the part cannot be cut evenly, the last of them stand for nothing.

    Args:
        size: of the part, in bytes.
        needed: into how many pieces it is cut.
    """
    return -(-size // needed)
