"""Leaving out: which live servers are too slow to be of use. Pure.

A server that holds layers has them for all micro-batches of its pipeline, or for some, and the others wait for it: with
the least that it can hold, it may hold everybody up. So the best placement on all that live is compared with the best
ones without the slowest of them. Who is left out holds nothing, and is there when somebody dies.
"""

from collections.abc import Callable, Collection, Mapping

from recycle.job import Server

PeriodOn = Callable[[frozenset[Server]], float]
"""The shortest iteration of all placements on some servers; infinite where they cannot hold the model."""


def servers_of_use(live: Collection[Server], speeds: Mapping[Server, int], period_on: PeriodOn) -> frozenset[Server]:
    """The live servers that layers are best placed on.

    Servers are left out from the slowest on, as many as make the iteration the shortest; and of these, nobody with whom
    it is as short. Servers as fast as the fastest are all of use.

    Args:
        live: servers.
        speeds: of each, in percent.
        period_on: scores servers.
    """
    used = everybody = frozenset(live)
    fastest = max((speeds[each] for each in live), default=0)
    slow = sorted((each for each in live if speeds[each] < fastest), key=lambda each: (speeds[each], each))
    least = period_on(everybody)
    for count in range(1, len(slow) + 1):
        rest = everybody.difference(slow[:count])
        period = period_on(rest)
        if period < least:
            used, least = rest, period
    for server in reversed(slow):
        if server not in used and period_on(used | {server}) <= least:
            used |= {server}
            least = period_on(used)
    return used
