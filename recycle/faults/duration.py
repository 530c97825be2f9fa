"""Durations as people write them."""

import re

from recycle.faults.errors import FaultError

_TEXT = re.compile(r"(\d{1,10}(?:\.\d{1,30})?)\s*(ms|s|m|h)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
LARGEST = 1e9
DECIMALS = 9


def parse_duration(value: str | float, field: str) -> float:
    """A duration in seconds, to the nanosecond.

    Args:
        value: a text such as ``500ms``, ``2s``, ``1m`` or ``1h``, or a number of seconds.
        field: what it is called in errors.

    Raises:
        FaultError: it is no duration, or it is negative.
    """
    if isinstance(value, str):
        match = _TEXT.fullmatch(value.strip())
        if match is None:
            raise FaultError(f"{field} is {value!r}: write a duration such as 500ms, 2s, 1m or 1h")
        value = float(match[1]) * _SECONDS[match[2]]
    if not 0 <= value <= LARGEST:
        raise FaultError(f"{field} is {value:g}: give seconds, from 0 to {LARGEST:g}")
    return round(float(value), DECIMALS)


def format_duration(seconds: float) -> str:
    """The text of a duration, which ``parse_duration`` reads."""
    return f"{seconds:.{DECIMALS}f}".rstrip("0").rstrip(".") + "s"
