"""Gemini's closed forms (SOSP'23): the probability of surviving in memory, and the share of time that is effective."""

import math

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


def survival_bound(hosts: int, copies: int, lost: int) -> float:
    """Gemini's lower bound (SOSP'23, Corollary 1) for hosts in groups of as many as copies, without live peers.

    At most this many groups are lost whole, each with the chance that all its hosts are among the failures; exact
    below twice the number of copies.
    """
    if lost < copies:
        return 1.0
    ways = hosts * math.comb(hosts - copies, lost - copies)
    return max(0.0, 1 - ways / (copies * math.comb(hosts, lost)))
