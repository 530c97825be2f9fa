"""What a process says to its user beside its reports: on standard error, or in the log of the program that it is in."""

import logging
import sys
from contextlib import suppress

from recycle.wording import printable_lines

LOG = logging.getLogger("recycle")
"""The logger that takes these lines, as warnings, if it has a handler of its own."""


def say(text: str) -> None:
    """Tell the user something; where standard error has no room, nothing more comes of it than that it is not seen."""
    if LOG.handlers:
        LOG.warning("%s", printable_lines(text))
        return
    with suppress(OSError):
        sys.stderr.write(f"recycle: {printable_lines(text)}\n")
        sys.stderr.flush()
