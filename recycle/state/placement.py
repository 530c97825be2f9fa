"""Placement of copies: which hosts hold which state, and how likely it is that a failure of several leaves all of it.

Hosts are numbered from 0. Whatever lives on a host, its own copy included, is gone when the host is.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import combinations

from recycle.state.errors import StateError
from recycle.wording import plural

Holders = tuple[int, ...]
"""Hosts that hold the same state."""


def place_copies(domains: Sequence[str], copies: int) -> tuple[Holders, ...]:
    """Which hosts hold each host's state, itself first: Gemini's Algorithm 1 (SOSP'23), over failure domains.

    Groups of as many hosts as there are copies keep each other's state; so many that the rest is less than two groups,
    and in that rest each host is kept by those behind it in a ring. No two hosts of a group, or of the ring, fail
    together.

    Args:
        domains: for each host, the name of what fails with it: its own, or that of its rack.
        copies: of each state, one's own among them.

    Raises:
        StateError: there are not enough domains, or one of them has too many of the hosts.
    """
    hosts = len(domains)
    if not 1 <= copies <= hosts:
        raise StateError(f"copies is {copies}, and this run has {plural(hosts, 'host')}: give at most {hosts}")
    groups = hosts // copies
    sizes = [copies] * (groups - 1) + [hosts - copies * (groups - 1)]
    left = Counter(domains)
    waiting = {domain: [host for host in range(hosts) if domains[host] == domain] for domain in left}
    placed: list[Holders] = [()] * hosts
    for size in sizes:
        # One host from each of those domains that have the most left: no other way finds groups where this does not.
        chosen = [domain for domain, count in left.most_common(size) if count]
        if len(chosen) < size:
            fullest, count = Counter(domains).most_common(1)[0]
            raise StateError(
                f"copies is {copies}: {count} of {hosts} hosts fail together as {fullest}, so that two copies would "
                f"be in one place; name smaller racks, or ask for fewer copies"
            )
        left.subtract(chosen)
        members = sorted(waiting[domain].pop(0) for domain in chosen)
        for place, host in enumerate(members):
            placed[host] = tuple(members[(place + step) % size] for step in range(copies))
    return tuple(placed)


def survival(hosts: int, states: Iterable[Collection[int]], lost: int) -> float:
    """The probability that a failure of some hosts at once, each set of them equally likely, leaves all states.

    It is counted and not bounded, in parts of the job that share no host.

    Args:
        hosts: how many there are.
        states: for each state, the hosts of which one must be left: of its live peers and of its copies.
        lost: how many hosts fail.
    """
    # How many sets of each size lose nothing, put together from the parts. All other hosts may fail.
    ways = [math.comb(hosts, count) for count in range(lost + 1)]
    fatal = _smallest(frozenset(each) for each in states if len(each) <= lost)
    parts = _parts(fatal)
    free = hosts - sum(len(part) for part in parts)
    safe = [math.comb(free, count) for count in range(lost + 1)]
    for part in parts:
        inside = [each for each in fatal if each <= part]
        here = [_count_safe(part, inside, count) for count in range(lost + 1)]
        safe = [sum(safe[count - some] * here[some] for some in range(count + 1)) for count in range(lost + 1)]
    return safe[lost] / ways[lost]


def _smallest(sets: Iterable[frozenset[int]]) -> list[frozenset[int]]:
    """Those that contain no other: who loses a larger one has lost a smaller one already."""
    kept: list[frozenset[int]] = []
    for each in sorted(set(sets), key=len):
        if not any(other <= each for other in kept):
            kept.append(each)
    return kept


def _parts(sets: Iterable[frozenset[int]]) -> list[frozenset[int]]:
    """The hosts of some sets, in parts so that each set lies in one."""
    parts: list[frozenset[int]] = []
    for each in sets:
        touched = [part for part in parts if part & each]
        parts = [part for part in parts if not part & each] + [each.union(*touched)]
    return parts


def _count_safe(hosts: Collection[int], fatal: Sequence[frozenset[int]], count: int) -> int:
    """How many sets of so many hosts contain no fatal one."""
    return sum(not any(each.issubset(some) for each in fatal) for some in combinations(sorted(hosts), count))
