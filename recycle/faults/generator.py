"""Random outages like those of a real cluster: failures in bursts, repairs of very different lengths, whole racks."""

import itertools
import math
from random import Random
from statistics import fmean, median, pstdev

import msgspec

from recycle.faults.errors import FaultError
from recycle.faults.outages import NodeOutage, Outages

LEAST_SHAPE, MOST_SHAPE = 0.3, 5.0
DAY = 86_400.0

MOST = 1_000_000
"""Failures beyond which no outages are generated."""


class Statistics(msgspec.Struct, frozen=True):
    """What a trace is like.

    Attributes:
        rate: failures per node and day.
        gap_mean: hours between two failures of the cluster.
        gap_median: likewise.
        gap_variation: standard deviation of the gaps over their mean: 1 for a Poisson process, more with bursts.
        simultaneous: share of the failures that came at the same time as the one before.
        repair_median: hours.
        repair_mean: hours.
        down: mean share of nodes that are down.
    """

    rate: float
    gap_mean: float
    gap_median: float
    gap_variation: float
    simultaneous: float
    repair_median: float
    repair_mean: float
    down: float


class FailureModel(msgspec.Struct, frozen=True):
    """How outages come.

    Attributes:
        rate: failures per node and day.
        shape: of the Weibull distribution of gaps between bursts: 1 for a Poisson process, less for more bursts.
        simultaneous: share of failures that come with the one before, from the same rack.
        repair_median: hours; the lengths of repairs are log-normal.
        repair_mean: hours.
        rack: servers that fail together are neighbours in racks of so many.
    """

    rate: float
    shape: float = 1.0
    simultaneous: float = 0.0
    repair_median: float = 20.4
    repair_mean: float = 131.0
    rack: int = 8

    def __post_init__(self) -> None:
        if not (0 < self.rate < math.inf):
            raise FaultError(f"rate is {self.rate:g}: give failures per node and day above 0")
        if not 0 <= self.simultaneous < 1:
            raise FaultError(f"simultaneous is {self.simultaneous:g}: give a share from 0 to below 1")
        if not 0 < self.repair_median <= self.repair_mean:
            raise FaultError(f"repair_mean is {self.repair_mean:g} h: it is not below the median, a positive number")


def statistics_of(outages: Outages) -> Statistics:
    """What a trace is like.

    Raises:
        FaultError: it has fewer than three failures.
    """
    starts = [entry.start for entry in outages.entries if entry.start > 0]
    if len(starts) < 3:
        raise FaultError(f"{outages.name}: {len(starts)} failures: statistics need three at least")
    gaps = [(later - one) / 3600 for one, later in itertools.pairwise(starts)]
    repairs = [(entry.end - entry.start) / 3600 for entry in outages.entries]
    return Statistics(
        rate=len(starts) / outages.nodes / outages.seconds * DAY,
        gap_mean=fmean(gaps),
        gap_median=median(gaps),
        gap_variation=pstdev(gaps) / fmean(gaps),
        simultaneous=sum(gap == 0 for gap in gaps) / len(gaps),
        repair_median=median(repairs),
        repair_mean=fmean(repairs),
        down=sum(repairs) * 3600 / outages.nodes / outages.seconds,
    )


def calibrated(outages: Outages) -> FailureModel:
    """The model with a trace's rate, variation of gaps, simultaneous failures and repairs."""
    facts = statistics_of(outages)
    # (1 - q)(1 + v^2) of a gap that is 0 with probability q: the squares of both sides' variations.
    squared = (1 + facts.gap_variation**2) * (1 - facts.simultaneous) - 1
    return FailureModel(
        rate=facts.rate,
        shape=_shape(math.sqrt(max(squared, 0.0))),
        simultaneous=facts.simultaneous,
        repair_median=facts.repair_median,
        repair_mean=facts.repair_mean,
    )


def generate(model: FailureModel, nodes: int, seconds: float, seed: int) -> Outages:
    """Random outages; the same for the same seed. A node that is down does not fail.

    Raises:
        FaultError: there is nothing to generate.
    """
    if nodes < 1 or not (0 < seconds < math.inf):
        raise FaultError(f"{nodes} nodes over {seconds:g} s: give at least one node, and a time above 0")
    random = Random(seed)
    if model.rate * nodes * seconds / DAY > MOST:
        raise FaultError(
            f"mtbf of a node is {DAY / model.rate:g} s, with {nodes} nodes over {seconds:g} s: at most {MOST} "
            "failures; make it longer"
        )
    mean_gap = DAY / (model.rate * nodes) / (1 - model.simultaneous)
    scale = mean_gap / math.gamma(1 + 1 / model.shape)
    spread = math.sqrt(2 * math.log(model.repair_mean / model.repair_median))
    back = [0.0] * nodes
    entries = []
    time = random.weibullvariate(scale, model.shape)
    while time < seconds:
        node = random.randrange(nodes)
        while True:
            if back[node] <= time:
                back[node] = time + random.lognormvariate(math.log(model.repair_median), spread) * 3600
                entries.append(NodeOutage(node, time, min(back[node], seconds)))
            if random.random() >= model.simultaneous:
                break
            rack = node - node % model.rack
            node = random.randrange(rack, min(rack + model.rack, nodes))
        time += random.weibullvariate(scale, model.shape)
    return Outages(f"generated with seed {seed}", nodes, seconds, tuple(entries))


def _shape(variation: float) -> float:
    """The shape of the Weibull distribution with a coefficient of variation, by bisection: it falls with the shape."""
    low, high = LEAST_SHAPE, MOST_SHAPE
    for _ in range(50):
        middle = (low + high) / 2
        first, second = math.gamma(1 + 1 / middle), math.gamma(1 + 2 / middle)
        if math.sqrt(second / first**2 - 1) > variation:
            low = middle
        else:
            high = middle
    return (low + high) / 2
