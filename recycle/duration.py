"""Durations as people write them."""

import re

from recycle.errors import UserError

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """A duration such as 500ms, 2s or 1m, in seconds.

    Raises:
        UserError: it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)", text)
    if match is None:
        raise UserError(f"{text!r} is no duration: write 500ms, 2s, 1m or 1h")
    return float(match[1]) * UNITS[match[2]]
