"""The fleet: which templates the live servers form, and how many micro-batches each pipeline takes.

All pipelines bring as many micro-batches together as before, so that the gradient stays the same. For a time T let
g(n) be how many micro-batches a pipeline of n servers finishes within T. Pipelines that bring the most within T are a
knapsack: of servers, with at least so many pipelines as are asked for. The least T whose best fleet brings all
micro-batches is found by bisection, so no choice of templates and micro-batches takes less by the time that is used.

A fleet of f + 1 pipelines keeps a copy of every layer whichever f servers die, because pipelines share no server and
each holds the whole model (Oobleck, SOSP'23). With n0 the fewest servers that hold the model, such a fleet exists for
every number of live servers from (f + 1) * n0 on: f pipelines of n0 and one of the rest, or of as many as are of use.
"""

from collections.abc import Callable
from itertools import pairwise

import msgspec

from recycle.job import Job
from recycle.placement import PlacedPipeline, PlacedServer
from recycle.placing.layers import Model, Run
from recycle.placing.templates import Template, Templates

PeriodOf = Callable[[Template, int], int]
"""Time of an iteration of one pipeline with so many micro-batches, fill and drain included; it grows with them."""


class Formed(msgspec.Struct, frozen=True):
    """One pipeline of a fleet.

    Attributes:
        template: which layers each of its servers holds.
        micro_batches: that it takes in each iteration.
    """

    template: Template
    micro_batches: int


class Fleet(msgspec.Struct, frozen=True):
    """What the live servers form.

    Attributes:
        pipelines: the longest first.
        period: time of the slowest one's iteration.
    """

    pipelines: tuple[Formed, ...]
    period: int

    @property
    def servers(self) -> int:
        """How many of the live servers are used."""
        return sum(each.template.servers for each in self.pipelines)


def choose_fleet(
    templates: Templates, live: int, micro_batches: int, period_of: PeriodOf, failures: int = 0, most: int = 0
) -> Fleet | None:
    """The fleet whose iteration takes the least time.

    Args:
        templates: to choose from.
        live: servers that are alive.
        micro_batches: of all pipelines together in each iteration.
        period_of: what an iteration of a template takes.
        failures: of servers that are to leave a copy of every layer, whichever they are.
        most: pipelines, each of whose servers has a place; 0 for as many as help, and servers without a place.

    Returns:
        None where the live servers cannot form so many pipelines, or there are fewer micro-batches than pipelines.
    """
    sizes = [size for size in sorted(templates.by_servers) if size <= live]
    least = failures + 1
    if not sizes or live < least * sizes[0] or micro_batches < least:
        return None
    capacity = _Capacity(templates, micro_batches, period_of)
    # There every pipeline could take all micro-batches.
    low, high = 0, max(capacity.period(size, micro_batches) for size in (sizes if most else sizes[:1]))
    while low < high:
        middle = (low + high) // 2
        if _fill(capacity, sizes, live, (least, most), middle) is None:
            low = middle + 1
        else:
            high = middle
    found = _fill(capacity, sizes, live, (least, most), low)
    if found is None:
        assert most, "one pipeline of the least size can take all micro-batches"
        return None
    shares = _shares(capacity, found, micro_batches, low)
    pipelines = [Formed(templates.by_servers[size], share) for size, share in zip(found, shares, strict=True)]
    pipelines.sort(key=lambda each: (-each.template.servers, -each.micro_batches))
    return Fleet(tuple(pipelines), max(period_of(each.template, each.micro_batches) for each in pipelines))


class _Capacity:
    """How many micro-batches a template finishes within a time; every period is computed once."""

    def __init__(self, templates: Templates, most: int, period_of: PeriodOf) -> None:
        self.most = most
        self._templates = templates
        self._period_of = period_of
        self._periods: dict[tuple[int, int], int] = {}

    def period(self, size: int, micro_batches: int) -> int:
        key = size, micro_batches
        if key not in self._periods:
            self._periods[key] = self._period_of(self._templates.by_servers[size], micro_batches)
        return self._periods[key]

    def within(self, size: int, time: int) -> int:
        low, high = 0, self.most
        while low < high:
            middle = (low + high + 1) // 2
            if self.period(size, middle) <= time:
                low = middle
            else:
                high = middle - 1
        return low


def _fill(capacity: _Capacity, sizes: list[int], live: int, between: tuple[int, int], time: int) -> list[int] | None:
    """Sizes of pipelines that finish all micro-batches within a time; None if none do.

    Only pipelines of at least one micro-batch count, and no more of them than there are micro-batches.

    Args:
        capacity: of templates.
        sizes: to choose from, rising.
        live: servers.
        between: the fewest pipelines, and the most, each of whose servers has a place; 0 for as many as help.
        time: within which they finish.
    """
    least, limit = between
    within = {size: count for size in sizes if (count := capacity.within(size, time))}
    # most[p][s]: micro-batches of p pipelines (without a limit, the last row: of so many or more) on s servers, or on
    # some of them where there is no limit; -1 where there are none.
    none = [-1] * (live + 1)
    most: list[list[int]] = [[0, *none[1:]] if limit else [0] * (live + 1)]
    chosen: list[list[tuple[int, int]]] = [[(0, 0)] * (live + 1)]
    for row in range(1, (min(limit, capacity.most) or least) + 1):
        before, values, choices = most[-1], list(none), [(0, 0)] * (live + 1)
        for servers in range(1, live + 1):
            best, choice = -1, (0, 0)
            for size, count in within.items():
                rest = servers - size
                if rest < 0:
                    break
                if before[rest] + count > best and before[rest] >= 0:
                    best, choice = before[rest] + count, (size, row - 1)
                if row == least and not limit and values[rest] + count > best and values[rest] >= 0:
                    best, choice = values[rest] + count, (size, row)
            values[servers], choices[servers] = best, choice
        most.append(values)
        chosen.append(choices)
    enough = (row for row in range(least, len(most)) if most[row][live] >= capacity.most)
    row, servers = next(enough, 0), live
    found: list[int] = []
    if not row:
        return None
    while row:
        size, row = chosen[row][servers]
        found.append(size)
        servers -= size
    found.sort(key=lambda size: -within[size])
    # The least useful of more pipelines than micro-batches would have nothing to do.
    return found[: capacity.most]


def _shares(capacity: _Capacity, sizes: list[int], micro_batches: int, time: int) -> list[int]:
    """Micro-batches of each pipeline: what it finishes within the time, less what is too many, where that is long."""
    shares = [capacity.within(size, time) for size in sizes]
    for _ in range(sum(shares) - micro_batches):
        longest = max(
            (place for place, share in enumerate(shares) if share > 1),
            key=lambda place: capacity.period(sizes[place], shares[place]),
        )
        shares[longest] -= 1
    return shares


def fleet_job(model: Model, fleet: Fleet) -> Job:
    """The job that a fleet's servers train together: server s of its pipeline d is W<d>_<s>.

    Raises:
        JobError: a server has not the memory for a single micro-batch.
    """
    edges = sorted({edge for formed in fleet.pipelines for run in formed.template.runs for edge in run})
    chunks = list(pairwise(edges))
    layout = tuple(
        PlacedPipeline(formed.micro_batches, tuple(_placed(model, run, chunks) for run in formed.template.runs))
        for formed in fleet.pipelines
    )
    return Job(
        pipelines=len(layout),
        micro_batches=max(pipeline.micro_batches for pipeline in layout),
        stages=tuple(map(model.stage, chunks)),
        latency=(model.latency,) * (len(chunks) - 1),
        name="fleet",
        layout=layout,
    )


def _placed(model: Model, run: Run, chunks: list[Run]) -> PlacedServer:
    held = tuple(number for number, (first, _) in enumerate(chunks) if run[0] <= first < run[1])
    return PlacedServer(held, model.stage(run).limit)
