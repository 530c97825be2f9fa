"""Published against computed, for every table that is reproduced."""

from collections.abc import Callable, Iterator

import msgspec

from benchmarks.reproduce.artifact import TRACES, BambooSystem, SystemResult, VarunaSystem, oobleck_system
from benchmarks.reproduce.gemini import effective_share, survival_bound
from benchmarks.reproduce.published import (
    GEMINI_COMPUTED,
    GEMINI_EFFECTIVE,
    GEMINI_SURVIVAL,
    OUT_OF_MEMORY,
    RATES,
    RECYCLE_RETENTION,
    RECYCLE_SCALED,
    SHARES,
    TABLE_2,
    VARUNA_OF_ARTIFACT,
)
from benchmarks.reproduce.retention import retention
from recycle.state.placement import place_copies, survival
from recycle.study.constants import MEASURED

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
        placed = place_copies([str(machine) for machine in range(16)], 2)
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
