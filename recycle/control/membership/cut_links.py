"""Without which host a run goes on where no data comes through between two that are alive."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence


def host_to_leave_out(
    broken: Collection[frozenset[str]], hosts: Sequence[str], dispensable: Callable[[str], bool]
) -> str | None:
    """The host without which the run goes on; all who know the same choose the same.

    It is the one with the most broken links, and of those with as many the last one, so that the first host stays.

    Args:
        broken: the two hosts of each link over which nothing comes.
        hosts: of the view, in its order.
        dispensable: whether the others have all that a host has.

    Returns:
        Which; None where each of them is needed.
    """
    counts = Counter(host for pair in broken if pair <= set(hosts) for host in pair)
    candidates = [each for each in hosts if counts[each] and dispensable(each)]
    return max(candidates, key=lambda each: (counts[each], hosts.index(each)), default=None)
