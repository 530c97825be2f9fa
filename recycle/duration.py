"""Durations as people write them."""

import re

from recycle.errors import UserError

_TEXT = re.compile(r"(\d{1,10}(?:\.\d{1,30})?)\s*(ms|s|m|h|d)?", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration(text: str, name: str = "") -> float:
    """A duration such as 500ms, 2s or 1m, in seconds; a number without a unit is of seconds.

    Args:
        text: the duration.
        name: what errors call it.

    Raises:
        UserError: it is none.
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise UserError(f"{name and f'{name}: '}{text!r} is no duration: write 500ms, 2s, 1m or 1h")
    return float(match[1]) * _SECONDS[match[2] or "s"]
