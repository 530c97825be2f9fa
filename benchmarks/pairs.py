"""What a benchmark says of times that were measured in turns, one with and one without what is measured."""

import argparse
import os
import statistics
import sys
from collections.abc import Sequence

MOST_SPREAD = 0.25


def several(text: str) -> int:
    """A number of pairs or rounds from which a spread can be told: two or more; for ``type=`` of an option.

    Raises:
        argparse.ArgumentTypeError: it is another one.
    """
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text}: give 2 or more, for their spread is told as well")
    return int(text)


def judge(title: str, names: tuple[str, str], times: tuple[Sequence[float], Sequence[float]], allowed: float) -> int:
    """Print medians and the median ratio of pairs, unless the machine is too busy to say anything.

    Args:
        title: what was run.
        names: of what it is compared with, and of what is measured.
        times: of both, in seconds and in pairs.
        allowed: the greatest ratio.

    Returns:
        The exit status: 0 if the ratio is allowed, 1 if not, 2 if nothing can be said.
    """
    stock, ours = times
    quarters = statistics.quantiles(stock, n=4)
    spread = (quarters[2] - quarters[0]) / quarters[1]
    load = os.getloadavg()[0]
    if spread > MOST_SPREAD:
        print(
            f"the middle half of the {names[0]} times spreads over {spread:.0%} of their median (load {load:.1f}): "
            "that says more of this machine than of what is measured; run it again when less else is running",
            file=sys.stderr,
        )
        return 2
    ratio = statistics.median(one / other for one, other in zip(ours, stock, strict=True))
    print(f"{title}, {len(stock)} pairs, load {load:.1f}")
    print(f"{names[0]:<12} {statistics.median(stock) * 1e3:8.1f} ms, middle half spreads over {spread:.0%}")
    print(f"{names[1]:<12} {statistics.median(ours) * 1e3:8.1f} ms")
    print(f"median ratio {ratio:8.3f}, and {allowed} is allowed")
    return int(ratio > allowed)
