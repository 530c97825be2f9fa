"""Published tables of other systems and of ReCycle's trace, beside what is computed here.

Usage: python -m benchmarks.reproduce

Oobleck's Table 2 and where time goes in it, by the rules of its artifact's simulator; Gemini's probabilities of
surviving in memory and its effective time; what re-routing alone keeps over ReCycle's trace. The exit status is 1 if a
figure that is held is off.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from random import Random
from statistics import fmean
from typing import NamedTuple

import msgspec

from benchmarks.oobleck_artifact import TRACES, BambooSystem, SystemResult, VarunaSystem, oobleck_system
from harness.examples import paper_job
from recycle.faults.outages import Outages, load_outages
from recycle.state.directory import place_copies, survival
from recycle.study.constants import MEASURED
from recycle.study.rates import Rates


class PublishedRow(NamedTuple):
    """Throughput in samples per second, with a failure every six hours, hour and ten minutes."""

    model: str
    system: str
    throughput: tuple[float, float, float]


RATES = ("6h", "1h", "10m")

TABLE_2 = (
    PublishedRow("BERT-large", "Bamboo", (77.04, 75.60, 69.84)),
    PublishedRow("GPT-2", "Bamboo", (17.47, 17.13, 16.01)),
    PublishedRow("BERT-large", "Varuna", (259.57, 245.39, 168.15)),
    PublishedRow("GPT-2", "Varuna", (86.42, 83.94, 69.67)),
    PublishedRow("GPT-3 350M", "Varuna", (29.52, 27.61, 20.71)),
    PublishedRow("GPT-3 2.7B", "Varuna", (7.27, 6.41, 0.36)),
    PublishedRow("GPT-3 6.7B", "Varuna", (4.02, 2.91, 0.12)),
    PublishedRow("BERT-large", "Oobleck", (287.10, 286.28, 282.11)),
    PublishedRow("GPT-2", "Oobleck", (85.59, 85.42, 84.80)),
    PublishedRow("GPT-3 350M", "Oobleck", (29.30, 29.21, 28.70)),
    PublishedRow("GPT-3 2.7B", "Oobleck", (7.29, 7.23, 6.89)),
    PublishedRow("GPT-3 6.7B", "Oobleck", (4.33, 4.22, 3.55)),
)
"""Oobleck (SOSP'23), Table 2; Bamboo ran out of memory with the other models."""

OUT_OF_MEMORY = ("GPT-3 350M", "GPT-3 2.7B", "GPT-3 6.7B")
"""Models that Bamboo has no throughput for: in Table 2, and in the inputs of the artifact."""

VARUNA_OF_ARTIFACT = {
    "BERT-large": (260.1128, 246.0310, 173.5206),
    "GPT-2": (86.5119, 85.1707, 76.3940),
    "GPT-3 350M": (29.5039, 28.4929, 20.1894),
    "GPT-3 2.7B": (7.2704, 6.5361, 1.7568),
    "GPT-3 6.7B": (4.1450, 2.6885, 0.2551),
}
"""What the artifact's own simulator prints for Varuna, to four digits: it differs from the paper."""

SHARES = {
    "Bamboo": {
        "effective": 0.1498,
        "redundant": 0.6101,
        "reconfiguring": 0.0898,
        "restarting": 0.0030,
        "redone": 0.1474,
    },
    "Varuna": {"effective": 0.5445, "checkpoint": 0.0404, "restarting": 0.0670, "redone": 0.3481},
    "Oobleck": {"effective": 0.9552, "reconfiguring": 0.0031, "redone": 0.0417},
}
"""Where time goes for BERT with a failure every ten minutes: README of tools/simulator in Oobleck's artifact."""

GEMINI_SURVIVAL = {(16, 2): 0.933, (16, 3): 0.800}
"""Gemini (SOSP'23): machines, failures at once, and the probability that two copies in groups survive them."""

GEMINI_COMPUTED = {(128, 2): 0.992, (1000, 2): 0.999}
"""The same from Gemini's formula, for more machines."""

GEMINI_EFFECTIVE = 0.91
"""Gemini: share of effective time with 1000 machines of which 1.5% fail a day."""

RECYCLE_RETENTION, RECYCLE_SCALED = 0.952, 0.905
"""ReCycle (SOSP'24): share of fault-free throughput on average over its trace, and that of live GPUs."""


SOFTWARE, HARDWARE = 7 * 60.0, 12 * 60.0
"""Seconds from a failure to training again, from end to end."""


def effective_share(machines: int, failing_per_day: float) -> float:
    """The share of time that trains, where half of the failures are of software: the paper does not say how many are.

    Args:
        machines: how many.
        failing_per_day: share of them that fail each day.
    """
    each = (SOFTWARE + HARDWARE) / 2
    return 1 / (1 + machines * failing_per_day * each / 86_400)


def survival_bound(hosts: int, copies: int, lost: int) -> float:
    """Gemini's lower bound (SOSP'23, Corollary 1) for hosts in groups of as many as copies, without live peers.

    At most this many groups are lost whole, each with the chance that all its hosts are among the failures; exact
    below twice the number of copies.
    """
    if lost < copies:
        return 1.0
    ways = hosts * math.comb(hosts - copies, lost - copies)
    return max(0.0, 1 - ways / (copies * math.comb(hosts, lost)))


PIPELINES, DEPTH = 6, 4
TRACE_SHAPE = {"pipelines": PIPELINES, "stages": DEPTH}
"""Of the job that is taken through ReCycle's trace, with the costs and the memory limit of the paper's figures."""

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


def retention(micro_batches: int, advance: Callable[[str], None] = lambda _: None) -> Retention:
    """Plan for every number of live servers of the trace, several times, and average over its time."""
    outages = load_outages("shared-gpus")
    times = _time_by_live(outages)
    rates = Rates(paper_job(micro_batches=micro_batches, **TRACE_SHAPE), 8 * DEPTH)
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


SYSTEMS = {"Bamboo": BambooSystem, "Varuna": VarunaSystem, "Oobleck": oobleck_system}


class Figure(msgspec.Struct, frozen=True):
    """A published figure and what is computed here.

    Attributes:
        table: where it stands.
        what: of what it is.
        published: None where nothing is.
        computed: by this program.
        tolerance: how far apart they may be; None where the figure is printed and not held.
        note: what the reader must know.
    """

    table: str
    what: str
    published: float | None
    computed: float
    tolerance: float | None = None
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether the two are as close as they must be."""
        if self.tolerance is None or self.published is None:
            return True
        return abs(self.published - self.computed) <= self.tolerance + 1e-9


def reproduce(advance: Callable[[str], None] = lambda _: None) -> tuple[Figure, ...]:
    """All figures.

    Args:
        advance: told what is computed next.
    """
    return (*_table_2(advance), *_gemini(), *_recycle(advance))


def _table_2(advance: Callable[[str], None]) -> Iterator[Figure]:
    results: dict[tuple[str, str, str], SystemResult] = {}
    for row in TABLE_2:
        advance(f"Oobleck's Table 2: {row.system}, {row.model}")
        measured = next(each for each in MEASURED if each.model == row.model)
        for rate, published in zip(RATES, row.throughput, strict=True):
            result = results[row.system, row.model, rate] = SYSTEMS[row.system](measured).run(TRACES[rate])
            place = RATES.index(rate)
            of_artifact = VARUNA_OF_ARTIFACT[row.model][place] if row.system == "Varuna" else None
            yield Figure(
                table="Oobleck, Table 2 (samples/s)",
                what=f"{row.system}, {row.model}, {rate}",
                published=published,
                computed=result.throughput,
                tolerance=None if of_artifact else 0.01,
                note="the paper's; the artifact's own simulator differs from it" if of_artifact else "",
            )
            if of_artifact:
                yield Figure(
                    table="Oobleck's artifact (samples/s)",
                    what=f"{row.system}, {row.model}, {rate}",
                    published=of_artifact,
                    computed=result.throughput,
                    tolerance=1e-4,
                    note="what the artifact's simulator prints",
                )
    for model in OUT_OF_MEMORY:
        throughput = next(each for each in MEASURED if each.model == model).bamboo
        note = "out of memory in the paper and in its inputs"
        yield Figure("Oobleck, Table 2 (samples/s)", f"Bamboo, {model}, all rates", 0.0, sum(throughput), 0.0, note)
    for system, shares in SHARES.items():
        for share, value in shares.items():
            computed = results[system, "BERT-large", "10m"].shares.get(share, 0.0)
            yield Figure("Oobleck's artifact, time of BERT at 10m", f"{system}, {share}", value, computed, 0.005)


def _gemini() -> Iterator[Figure]:
    table = "Gemini, survival in memory"
    for (machines, failures), probability in (GEMINI_SURVIVAL | GEMINI_COMPUTED).items():
        what = f"{machines} machines, 2 copies, {failures} failures at once"
        yield Figure(table, what, probability, survival_bound(machines, 2, failures), 0.0005)
    for failures in range(2, 5):
        placed = place_copies(16, 2)
        yield Figure(
            table=table,
            what=f"16 machines, 2 copies, {failures} failures at once, counted",
            published=GEMINI_SURVIVAL.get((16, failures)),
            computed=survival(16, placed, failures),
            tolerance=0.0005,
            note="" if failures < 4 else f"the formula is a bound: {survival_bound(16, 2, failures):.3f}",
        )
    yield Figure(
        table="Gemini, effective time",
        what="1000 machines, 1.5% failing a day",
        published=GEMINI_EFFECTIVE,
        computed=effective_share(1000, 0.015),
        tolerance=0.01,
        note="half of the failures taken to be of software (7 min) and half of hardware (12 min)",
    )


def _recycle(advance: Callable[[str], None]) -> Iterator[Figure]:
    table = "ReCycle's trace, 6 pipelines of 4 stages, re-routing alone"
    for micro_batches in (6, 12):
        kept = retention(micro_batches, advance)
        for live, share in kept.by_live.items():
            yield Figure(table, f"M {micro_batches}, {live} of 24 live", None, share)
        yield Figure(
            table=table,
            what=f"M {micro_batches}, mean over the trace",
            published=RECYCLE_RETENTION,
            computed=kept.mean,
            note="no constant is fitted; the paper's job had other costs",
        )
        if micro_batches == 6:
            yield Figure(table, "live servers, mean over the trace", RECYCLE_SCALED, kept.scaled, 0.005)


def main() -> None:
    """Print a line per figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    figures = reproduce(lambda what: print(what, file=sys.stderr, flush=True))
    rows = [("", "published", "computed", "within", "", "")]
    rows += [
        (
            f"{each.table}: {each.what}",
            "" if each.published is None else f"{each.published:g}",
            f"{each.computed:.4f}",
            "" if each.tolerance is None else f"{each.tolerance:g}",
            "" if each.tolerance is None else "yes" if each.holds else "NO",
            each.note,
        )
        for each in figures
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for what, *numbers, holds, note in rows:
        cells = [what.ljust(widths[0]), *map(str.rjust, numbers, widths[1:4]), holds.ljust(widths[4]), note]
        print("  ".join(cells).rstrip())
    raise SystemExit(not all(each.holds for each in figures))


if __name__ == "__main__":
    main()
