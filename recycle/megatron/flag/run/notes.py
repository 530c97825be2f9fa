"""What the first rank tells all others before they train: the plan, with which view it begins, and what to do.

In a run that outlives its ranks, every rank that comes back reads it too, and members put back what is missing.
"""

import time
from collections.abc import Callable

from recycle.control.board.parts import NoteBoard
from recycle.control.host.waiting_notice import WaitingNotice
from recycle.runtime.errors import RunError

PATIENCE = 1800.0
"""Seconds that ranks wait for the first one, which may be making a plan."""

LOOK = 1.0
"""Seconds between two times that a rank asks for a note."""


class Notes:
    """One rank's notes.

    Args:
        board: where they are.
        say: tells the user something.
        returns: whether this rank was started again, long after the others.

    Attributes:
        returns: see above.
        known: all that this rank has told or read.
    """

    def __init__(self, board: NoteBoard, say: Callable[[str], None], *, returns: bool) -> None:
        self._board = board
        self._say = say
        self.returns = returns
        self.known: dict[str, bytes] = {}

    def tell(self, name: str, content: bytes) -> None:
        """Tell all others, those that come back too."""
        self.note(name, content)
        self._board.tell(name, content)

    def note(self, name: str, content: bytes) -> None:
        """Remember what the first rank has told in another way."""
        self.known[name] = content

    def read(self, name: str) -> bytes:
        """What the first rank has told, as soon as it has.

        Raises:
            RunError: it has not within half an hour.
        """
        # Training goes on, so what this rank needs was told: it is missing only if a stranger has taken it away.
        notice = WaitingNotice(self._say, first=LOOK if self.returns else None)
        deadline = time.monotonic() + PATIENCE
        while (found := self._board.read(name, LOOK)) is None:
            if time.monotonic() > deadline:
                raise RunError(f"the first rank has not told the {name} within {PATIENCE / 60:.0f} minutes")
            if self.returns:
                self._board.ask()
                notice.look(
                    lambda: (
                        f"the {name} of this run is missing in the store; members of the run are asked to put it back"
                    )
                )
            else:
                notice.look(lambda: f"waiting for the {name}, which the first rank tells all others")
        self.note(name, found)
        return found
