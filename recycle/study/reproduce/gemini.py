"""Gemini's closed form (SOSP'23) of the share of time that is effective."""

SOFTWARE, HARDWARE = 7 * 60.0, 12 * 60.0
"""Seconds from a failure to training again, from end to end."""


def effective_share(machines: int, failing_per_day: float) -> float:
    """The share of time that trains, where half of the failures are of software: the paper does not say how many are.

    Args:
        machines: how many.
        failing_per_day: share of them that fail each day.
    """
    each = (SOFTWARE + HARDWARE) / 2
    return 1 / (1 + machines * failing_per_day * each / 86_400)
