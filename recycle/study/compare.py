"""Policies over the same samples of failures: what each keeps and loses, by chance and by constants."""

from collections.abc import Callable, Iterator, Mapping
from statistics import fmean

import msgspec

from recycle.faults.outages import Outages
from recycle.job import Job
from recycle.planner.assemble import unlimited_baseline
from recycle.processors import pool, processors
from recycle.study.buckets import Bucket, Outcome
from recycle.study.constants import Constants, constant_sets
from recycle.study.failures import FailureHistory
from recycle.study.rates import Ground, Rates
from recycle.study.registry import make_policy
from recycle.study.simulator import simulate
from recycle.wording import MICROSECONDS, microseconds

SLOT_SECONDS = 10.0
"""Of an iteration, for jobs whose time unit is none of a clock."""

YEAR_HOURS = 8_766.0


class StudySetting(msgspec.Struct, frozen=True):
    """What is compared.

    Attributes:
        ground: the job.
        history: the failures.
        policies: names.
        seeds: how many samples of the history there are.
        given: constants that are not taken as measured, by name.
    """

    ground: Ground
    history: FailureHistory
    policies: tuple[str, ...]
    seeds: int
    given: Mapping[str, float] = msgspec.field(default_factory=dict)

    @property
    def sets(self) -> tuple[Constants, ...]:
        """The constants that policies are modelled with, the typical ones last."""
        return constant_sets(self.given)


class PolicyComparison(msgspec.Struct, frozen=True):
    """A policy in a comparison. All figures are of the same samples; means are with the typical constants.

    Attributes:
        policy: its name.
        source: what its throughput and its pauses are from.
        paid: servers that are paid for, spares among them.
        goodput: useful training per server-hour paid for, over that of the fault-free job; the mean.
        low: the least over samples and constants.
        high: the greatest.
        shares: of the server-time that is paid for, in each bucket; the mean.
        failures: how often servers failed, the mean.
    """

    policy: str
    source: str
    paid: int
    goodput: float
    low: float
    high: float
    shares: Mapping[Bucket, float]
    failures: float

    @property
    def lost(self) -> float:
        """Server-hours a year that are paid for and leave no training; the mean."""
        return self.lost_with(self.goodput)

    def lost_with(self, goodput: float) -> float:
        """Server-hours a year that another goodput would lose."""
        return (1 - goodput) * self.paid * YEAR_HOURS


def iteration_seconds(job: Job) -> float:
    """Of the fault-free 1F1B schedule, by the job's time unit; 10 s where that is none of a clock."""
    if job.time_unit.lower() in MICROSECONDS:
        return max(unlimited_baseline(job) * microseconds(job.time_unit) / 1e6, 1e-6)
    return SLOT_SECONDS


def sampled(setting: StudySetting, seed: int) -> Outages:
    """The failures of the job's servers and of as many spares as any policy has, by a seed."""
    job = setting.ground.job
    rates = Rates(job, setting.ground.layers)
    spares = max(make_policy(name, setting.ground, rates).spares for name in setting.policies)
    return setting.history.sample(job.pipelines * job.depth, spares, seed)


def compare(setting: StudySetting, advance: Callable[[str], None] = lambda _: None) -> tuple[PolicyComparison, ...]:
    """Every policy on the same samples, samples in parallel.

    Args:
        setting: what is compared.
        advance: told how far it is.
    """
    workers = min(setting.seeds, processors())
    results = []
    for number, result in enumerate(_in_parallel(setting, workers), 1):
        results.append(result)
        advance(f"{number} of {setting.seeds} samples")
    rates = Rates(setting.ground.job, setting.ground.layers)
    comparisons = []
    for place, name in enumerate(setting.policies):
        outcomes = [result[place][0] for result in results]
        values = [value for result in results for value in result[place][1]]
        policy = make_policy(name, setting.ground, rates)
        paid = outcomes[0].paid
        seconds = paid * outcomes[0].seconds
        comparisons.append(
            PolicyComparison(
                policy=name,
                source=policy.source,
                paid=paid,
                goodput=fmean(each.goodput for each in outcomes),
                low=min(values),
                high=max(values),
                shares={bucket: fmean(each.buckets[bucket] for each in outcomes) / seconds for bucket in Bucket},
                failures=fmean(len(each.failures) for each in outcomes),
            )
        )
    return tuple(comparisons)


def _in_parallel(setting: StudySetting, workers: int) -> Iterator[list[tuple[Outcome, list[float]]]]:
    if workers == 1:
        yield from (_sample(setting, seed) for seed in range(setting.seeds))
        return
    with pool(workers) as executor:
        futures = [executor.submit(_sample, setting, seed) for seed in range(setting.seeds)]
        yield from (future.result() for future in futures)


def _sample(setting: StudySetting, seed: int) -> list[tuple[Outcome, list[float]]]:
    """Per policy, its outcome with the typical constants, and its goodput with each set of constants."""
    outages = sampled(setting, seed)
    job = setting.ground.job
    rates = Rates(job, setting.ground.layers)
    results = []
    for name in setting.policies:
        outcomes = [
            simulate(make_policy(name, setting.ground, rates, each), job.pipelines, job.depth, outages)
            for each in setting.sets
        ]
        results.append((outcomes[-1].without_spans(), [each.goodput for each in outcomes]))
    return results
