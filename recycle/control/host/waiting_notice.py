"""What a process says that waits for others for long."""

import time
from collections.abc import Callable

FIRST, AGAIN = 10.0, 60.0
"""Seconds of waiting after which it is said for whom, and after which it is said again."""


class WaitingNotice:
    """Says for whom this process waits, where that takes long.

    Args:
        say: tells the user something.
        first: after how many seconds it is said for the first time, if not after the usual ones.
    """

    def __init__(self, say: Callable[[str], None], first: float | None = None) -> None:
        self._say = say
        self._due = time.monotonic() + (FIRST if first is None else first)

    def look(self, whom: Callable[[], str]) -> None:
        """Every now and then while it waits.

        Args:
            whom: says for whom, in a sentence; it is asked where that is due.
        """
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + AGAIN
            self._say(whom())
