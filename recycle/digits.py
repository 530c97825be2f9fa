"""Numbers as people write them: in the digits 0 to 9.

Python's own ``int`` and ``float`` take digits of every alphabet and underscores between them, so that a slip of the
hand would be another number.
"""

import math
import re

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)


def is_number(text: str) -> bool:
    """Whether a text is a number, however large."""
    return _NUMBER.fullmatch(text) is not None


def parse_number(text: str) -> float:
    """A finite number.

    Raises:
        ValueError: the text is none.
    """
    if is_number(text) and math.isfinite(value := float(text)):
        return value
    raise ValueError(text)


def parse_whole(text: str, *, signed: bool = False) -> int:
    """A whole number of 18 digits at most.

    Args:
        text: as it is written.
        signed: whether it may have a sign.

    Raises:
        ValueError: the text is none.
    """
    if _WHOLE.fullmatch(text) and (signed or text[0].isdigit()):
        return int(text)
    raise ValueError(f"{text!r}: give a whole number in the digits 0 to 9, of 18 at most")
