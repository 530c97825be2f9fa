"""How fast servers compute beside their peers, as a run has shown."""

from collections import defaultdict
from collections.abc import Mapping
from statistics import median, median_low

import msgspec

from recycle.job import Server
from recycle.plan.instruction import Op
from recycle.record.timeline import Timeline
from recycle.wording import plural

SLOW = 0.9
"""Below this share of its peers' speed, a server is called slow: less is the noise of clocks and of neighbours."""

LEAST = 5
"""Iterations that are needed to say so."""


class Speed(msgspec.Struct, frozen=True):
    """How fast a server computes.

    Attributes:
        server: which.
        share: of its peers' speed.
        iterations: in which it was compared with them.
    """

    server: Server
    share: float
    iterations: int

    def __str__(self) -> str:
        return (
            f"{self.server} computes at {self.share:.0%} of its peers' speed, in the median of "
            f"{plural(self.iterations, 'iteration')}"
        )


def measured_speeds(timeline: Timeline) -> tuple[Speed, ...]:
    """The speed of every server that executed what peers executed in the same iterations.

    Of every iteration, what a server took in the median for an op at a chunk is compared with the median of all who
    executed that; where they are two, with the faster one, so that the slow one of a pair is told apart. The median of
    these ratios over all iterations forgets those in which something else held a server up.
    """
    times: dict[tuple[int, int, Op], dict[Server, list[float]]] = defaultdict(lambda: defaultdict(list))
    for span in timeline.spans:
        if span.instruction.op.is_compute:
            key = span.iteration, span.instruction.stage, span.instruction.op
            times[key][span.server].append(span.end - span.start)
    ratios: dict[Server, list[float]] = defaultdict(list)
    iterations: dict[Server, set[int]] = defaultdict(set)
    for (iteration, *_), by_server in times.items():
        for server, ratio in _ratios({server: median(each) for server, each in by_server.items()}).items():
            ratios[server].append(ratio)
            iterations[server].add(iteration)
    return tuple(
        Speed(server, 1 / median(each), len(iterations[server]))
        for server, each in sorted(ratios.items())
        if median(each)
    )


def _ratios(taken: Mapping[Server, float]) -> dict[Server, float]:
    """What each server took for a task, in times of what is usual; empty where nobody has a peer."""
    usual = median_low(taken.values())
    return {server: each / usual for server, each in taken.items()} if len(taken) > 1 and usual > 0 else {}


def slow_servers(timeline: Timeline) -> tuple[Speed, ...]:
    """The servers that a run has shown to be slower than their peers, the slowest first."""
    found = (each for each in measured_speeds(timeline) if each.share < SLOW and each.iterations >= LEAST)
    return tuple(sorted(found, key=lambda each: each.share))
