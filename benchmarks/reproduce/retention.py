"""ReCycle's trace: what re-routing alone keeps, per number of live servers and on average."""

import itertools
from collections.abc import Callable
from random import Random
from statistics import fmean

import msgspec

from recycle.faults.outages import Outages, load_outages
from recycle.job import Job, Stage
from recycle.study.rates import Rates

PIPELINES, DEPTH = 6, 4
PLACEMENTS = 12
"""Sets of dead servers that are drawn for each number of them: the trace tells only how many."""


class Retention(msgspec.Struct, frozen=True):
    """What is kept.

    Attributes:
        micro_batches: per pipeline.
        by_live: for each number of live servers, the mean share of fault-free throughput over drawn sets of the dead.
        mean: over the time of the trace.
        scaled: the share of live servers over the time of the trace.
    """

    micro_batches: int
    by_live: dict[int, float]
    mean: float
    scaled: float


def example_job(micro_batches: int) -> Job:
    """Six pipelines of four stages, with the costs and the memory limit of the paper's figures."""
    stage = Stage(
        forward=1,
        input_gradient=1,
        weight_gradient=1,
        optimizer=3,
        reduction=0,
        held=1,
        released_at_input_gradient=1,
        limit=DEPTH,
    )
    return Job(PIPELINES, micro_batches, (stage,) * DEPTH, (0,) * (DEPTH - 1), name="ReCycle's trace")


def retention(micro_batches: int, advance: Callable[[str], None] = lambda _: None) -> Retention:
    """Plan for every number of live servers of the trace, several times, and average over its time."""
    outages = load_outages("shared-gpus")
    times = _time_by_live(outages)
    rates = Rates(example_job(micro_batches), 8 * DEPTH)
    random = Random(0)
    by_live = {}
    for live in sorted(times, reverse=True):
        advance(f"{micro_batches} micro-batches, {live} live servers")
        by_live[live] = fmean(_one(rates, outages.nodes - live, random) for _ in range(PLACEMENTS))
    total = sum(times.values())
    return Retention(
        micro_batches=micro_batches,
        by_live=by_live,
        mean=sum(by_live[live] * time for live, time in times.items()) / total,
        scaled=sum(live * time for live, time in times.items()) / total / outages.nodes,
    )


def _one(rates: Rates, dead: int, random: Random) -> float:
    while True:
        servers = random.sample(range(PIPELINES * DEPTH), dead)
        counts = tuple(sum(server % DEPTH == stage for server in servers) for stage in range(DEPTH))
        if max(counts) < PIPELINES:
            return rates.rerouted(counts)


def _time_by_live(outages: Outages) -> dict[int, float]:
    changes = sorted({0.0, outages.seconds, *(time for entry in outages.entries for time in entry[1:])})
    times: dict[int, float] = {}
    for begin, end in itertools.pairwise(changes):
        live = outages.nodes - sum(entry.start <= begin < entry.end for entry in outages.entries)
        times[live] = times.get(live, 0.0) + end - begin
    return times
