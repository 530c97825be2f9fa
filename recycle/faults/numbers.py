"""Numbers as traces have them."""

import math
import re

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_COUNT = re.compile(r"\d{1,18}", re.ASCII)


def parse_number(text: str) -> float:
    """A finite number in the digits 0 to 9.

    Raises:
        ValueError: the text is none.
    """
    if _NUMBER.fullmatch(text) and math.isfinite(value := float(text)):
        return value
    raise ValueError(text)


def parse_count(text: str) -> int:
    """A whole number from 0 on, in the digits 0 to 9.

    Raises:
        ValueError: the text is none.
    """
    if _COUNT.fullmatch(text):
        return int(text)
    raise ValueError(text)
