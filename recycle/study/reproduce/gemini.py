"""Gemini's closed forms (SOSP'23): what survives in memory, and what share of time is effective."""

import math

SOFTWARE, HARDWARE = 7 * 60.0, 12 * 60.0
"""Seconds from a failure to training again, from end to end."""


def survival(machines: int, copies: int, failures: int) -> float:
    """The probability that failures at once leave a copy of everything, with machines in groups of as many as copies.

    At most this many groups are lost whole, each with the chance that all its machines are among the failures; exact
    below twice the number of copies.
    """
    if failures < copies:
        return 1.0
    ways = machines * math.comb(machines - copies, failures - copies)
    return max(0.0, 1 - ways / (copies * math.comb(machines, failures)))


def effective_share(machines: int, failing_per_day: float) -> float:
    """The share of time that trains, where half of the failures are of software: the paper does not say how many are.

    Args:
        machines: how many.
        failing_per_day: share of them that fail each day.
    """
    each = (SOFTWARE + HARDWARE) / 2
    return 1 / (1 + machines * failing_per_day * each / 86_400)
