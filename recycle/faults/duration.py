"""Times and durations of faults."""

from recycle import duration
from recycle.errors import UserError
from recycle.faults.errors import FaultError

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
        try:
            value = duration.parse_duration(value)
        except UserError as error:
            raise FaultError(f"{field}: {error}") from error
    if not 0 <= value <= LARGEST:
        raise FaultError(f"{field} is {value:g}: give seconds, from 0 to {LARGEST:g}")
    return round(float(value), DECIMALS)


def format_duration(seconds: float) -> str:
    """The text of a duration, which ``parse_duration`` reads."""
    return f"{seconds:.{DECIMALS}f}".rstrip("0").rstrip(".") + "s"
