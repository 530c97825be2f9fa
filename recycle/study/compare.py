"""Policies over one trace: each one's outcome, and how far it depends on chance and on constants."""

from collections.abc import Callable, Iterator
from random import Random
from statistics import fmean

import msgspec

from recycle.faults.outages import Outages
from recycle.job import Job
from recycle.planner.assemble import unlimited_baseline
from recycle.processors import pool, processors
from recycle.study.buckets import Outcome
from recycle.study.cluster import Cluster
from recycle.study.constants import MEASURED, TYPICAL, Measured
from recycle.study.rates import Ground, Rates
from recycle.study.registry import make_policy
from recycle.study.simulator import simulate
from recycle.wording import MICROSECONDS, microseconds

SLOT_SECONDS = 10.0
"""Of an iteration, for jobs whose time unit is none of a clock."""

POINTS, DRAWS = 9, 3
MOST_DEAD = 0.3


class StudySetting(msgspec.Struct, frozen=True):
    """What is compared.

    Attributes:
        ground: the job.
        outages: the trace, as it was read.
        policies: names.
        seeds: how often the trace is dealt to the job's servers.
    """

    ground: Ground
    outages: Outages
    policies: tuple[str, ...]
    seeds: int


class PolicyComparison(msgspec.Struct, frozen=True):
    """A policy in a comparison.

    Attributes:
        policy: its name.
        model_only: whether it models what is not built.
        source: where its constants come from.
        outcome: of the first seed, with the typical constants.
        low: the least value over seeds and constants.
        high: the greatest.
        mean: over seeds, with the typical constants.
    """

    policy: str
    model_only: bool
    source: str
    outcome: Outcome
    low: float
    high: float
    mean: float


def iteration_seconds(job: Job) -> float:
    """Of the fault-free 1F1B schedule, by the job's time unit; 10 s where that is none of a clock."""
    if job.time_unit.lower() in MICROSECONDS:
        return max(unlimited_baseline(job) * microseconds(job.time_unit) / 1e6, 1e-6)
    return SLOT_SECONDS


def dealt(setting: StudySetting, seed: int) -> Outages:
    """The trace for the job's servers and spares, dealt by a seed."""
    job = setting.ground.job
    rates = Rates(job, setting.ground.layers)
    spares = max(make_policy(name, setting.ground, rates).spares for name in setting.policies)
    return setting.outages.resampled(job.pipelines * job.depth + spares, seed)


def compare(setting: StudySetting, advance: Callable[[str], None] = lambda _: None) -> tuple[PolicyComparison, ...]:
    """Every policy on the same dealt traces, seeds in parallel.

    Args:
        setting: what is compared.
        advance: told how far it is.
    """
    workers = min(setting.seeds, processors())
    results = []
    for number, result in enumerate(_in_parallel(setting, workers), 1):
        results.append(result)
        advance(f"{number} of {setting.seeds} deals of the trace")
    rates = Rates(setting.ground.job, setting.ground.layers)
    comparisons = []
    for place, name in enumerate(setting.policies):
        outcomes = [result[place] for result in results]
        values = [value for _, value_list in outcomes for value in value_list]
        policy = make_policy(name, setting.ground, rates)
        comparisons.append(
            PolicyComparison(
                policy=name,
                model_only=policy.model_only,
                source=policy.source,
                outcome=outcomes[0][0],
                low=min(values),
                high=max(values),
                mean=fmean(outcome.value for outcome, _ in outcomes),
            )
        )
    return tuple(comparisons)


def retention(setting: StudySetting) -> dict[str, list[tuple[int, float]]]:
    """Throughput against the number of dead servers, each policy's mean over drawn sets of them."""
    job = setting.ground.job
    rates = Rates(job, setting.ground.layers)
    size = job.pipelines * job.depth
    numbers = sorted({round(MOST_DEAD * size * point / (POINTS - 1)) for point in range(POINTS)})
    sets = {number: [Random(draw).sample(range(size), number) for draw in range(DRAWS)] for number in numbers}
    curves = {}
    for name in setting.policies:
        curves[name] = [
            (number, fmean(_rate(name, setting.ground, rates, dead) for dead in sets[number])) for number in numbers
        ]
    return curves


def _rate(name: str, ground: Ground, rates: Rates, dead: list[int]) -> float:
    policy = make_policy(name, ground, rates)
    cluster = Cluster(ground.job.pipelines, ground.job.depth, policy.spares)
    for server in dead:
        cluster.change(server, True)
    reaction = policy.react(cluster, bool(dead))
    assert reaction is not None, "nobody goes on as before at the start"
    return reaction.phases[-1].rate


def _in_parallel(setting: StudySetting, workers: int) -> Iterator[list[tuple[Outcome, list[float]]]]:
    if workers == 1:
        yield from (_deal(setting, seed) for seed in range(setting.seeds))
        return
    with pool(workers) as executor:
        yield from executor.map(_deal, [setting] * setting.seeds, range(setting.seeds))


def _deal(setting: StudySetting, seed: int) -> list[tuple[Outcome, list[float]]]:
    """Per policy, its outcome with the typical constants and its values with all; other constants on the first deal."""
    outages = dealt(setting, seed)
    rates = Rates(setting.ground.job, setting.ground.layers)
    others = [measured for measured in MEASURED if measured is not TYPICAL] if seed == 0 else []
    results = []
    for name in setting.policies:
        outcome = _outcome(setting, name, outages, rates, TYPICAL)
        values = [_outcome(setting, name, outages, rates, measured).value for measured in others]
        results.append((outcome, [outcome.value, *values]))
    return results


def _outcome(setting: StudySetting, name: str, outages: Outages, rates: Rates, measured: Measured) -> Outcome:
    job = setting.ground.job
    return simulate(make_policy(name, setting.ground, rates, measured), job.pipelines, job.depth, outages)
