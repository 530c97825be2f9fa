"""What torch and its libraries say of a failure, in words for people.

Torch's own words are in the traceback, because errors are raised from its errors, and in the log for debugging.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from recycle.runtime.errors import ConnectionLost, NoAnswer, ViewBroken

log = logging.getLogger(__name__)

PLACE = re.compile(r"\[[^\[\]]*\.(?:cc|cpp|cu|h|hpp):\d+\]\s*|\S+\.(?:cc|cpp|cu|h|hpp):\d+:?\s*")
"""Where something is said in the source of a library."""

NO_ANSWER = "gave no answer in time"

MEANINGS = (
    (re.compile(r"time.?out|timed out", re.IGNORECASE), NO_ANSWER),
    (re.compile(r"clos|reset by peer|broken pipe|refused|got 0 bytes", re.IGNORECASE), "was closed"),
)
"""What libraries say of a connection, and what that means; the first one counts."""


def plain(text: str) -> str:
    """The first line of a message, without the place in a library's source where it comes from."""
    return PLACE.sub("", text.strip().split("\n")[0]).strip()


@contextmanager
def losing(partners: Sequence[str] = ()) -> Iterator[None]:
    """Within the block, what a transport raises means that a connection is lost; what says so already is left as it is.

    Args:
        partners: see ``lost``.

    Raises:
        ConnectionLost: see above.
    """
    try:
        yield
    except ViewBroken:
        raise
    except RuntimeError as error:
        raise lost(error, partners) from error


def lost(error: RuntimeError, partners: Sequence[str] = ()) -> ConnectionLost:
    """What an error of a transport's means here.

    Args:
        error: torch's, or its library's.
        partners: what was on the other ends of the connections that may be meant; none where that is not known.
    """
    said = plain(str(error))
    meaning = next((meaning for words, meaning in MEANINGS if words.search(said)), f"failed: {said}")
    text = f"the connection to {' or '.join(partners) or 'another server'} {meaning}"
    log.debug("%s: %s", text, error)
    return NoAnswer(text, partners) if meaning == NO_ANSWER else ConnectionLost(text)
