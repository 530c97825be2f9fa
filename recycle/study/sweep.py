"""Maps: which policy wins, for which size of cluster, number of micro-batches and rate of failures."""

import csv
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from statistics import fmean
from typing import NamedTuple

import msgspec

from recycle.duration import parse_duration
from recycle.errors import UserError
from recycle.faults.generator import calibrated, generate
from recycle.faults.outages import Outages, load_outages
from recycle.processors import pool, processors
from recycle.study.compare import StudySetting, dealt
from recycle.study.constants import MEASURED, TYPICAL
from recycle.study.rates import Ground, Rates
from recycle.study.registry import NO_RIVALS, make_policy
from recycle.study.simulator import simulate

AXES = ("mtbf", "servers", "micro-batches")


class Axes(NamedTuple):
    """What is varied; an empty axis stays as the job and the trace have it.

    Attributes:
        mtbf: seconds between failures of one server, of traces generated like the real one.
        servers: of the job; whole pipelines of its depth.
        micro_batches: per pipeline.
    """

    mtbf: tuple[float, ...] = ()
    servers: tuple[int, ...] = ()
    micro_batches: tuple[int, ...] = ()


class Cell(msgspec.Struct, frozen=True):
    """A place on the map.

    Attributes:
        mtbf: seconds between failures of one server; 0 for the trace's own.
        servers: of the job.
        micro_batches: per pipeline.
        values: of each policy, the mean over deals with the typical constants.
        low: of each policy, the least over deals and over the constants of the models that rivals were measured with.
        high: likewise, the greatest.
    """

    mtbf: float
    servers: int
    micro_batches: int
    values: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]

    @property
    def rival(self) -> str:
        """The best of the rivals with the typical constants; empty if none is compared."""
        rivals = [name for name in self.values if name not in NO_RIVALS]
        return max(rivals, key=lambda name: self.values[name], default="")

    def loses(self, name: str) -> tuple[str, ...]:
        """The rivals that one of ours is not ahead of, with the constants that favour them the most."""
        return tuple(rival for rival in self.values if rival not in NO_RIVALS and self.high[rival] >= self.values[name])

    def text(self, name: str) -> str:
        """A policy's value with its interval."""
        return f"{self.values[name]:.4f} ({self.low[name]:.4f} to {self.high[name]:.4f})"


def parse_axes(text: str) -> Axes:
    """Read ``mtbf=100d,400d servers=100,1000 micro-batches=6,64``; axes are separated by spaces, semicolons or commas.

    Raises:
        UserError: an axis is unknown, or a value cannot be read.
    """
    values: dict[str, list[str]] = {}
    axis = ""
    for part in text.replace(";", ",").replace(" ", ",").split(","):
        name, equals, value = part.rpartition("=")
        axis = name if equals else axis
        if axis not in AXES:
            raise UserError(f"--sweep {text!r}: {axis or part!r} is no axis; write {'=..., '.join(AXES)}=...")
        if value:
            values.setdefault(axis, []).append(value)
    return Axes(
        mtbf=tuple(map(_seconds, values.get("mtbf", []))),
        servers=tuple(_whole("servers", value) for value in values.get("servers", [])),
        micro_batches=tuple(_whole("micro-batches", value) for value in values.get("micro-batches", [])),
    )


def sweep(setting: StudySetting, axes: Axes, advance: Callable[[str], None] = lambda _: None) -> tuple[Cell, ...]:
    """Every combination of the axes' values, in parallel.

    Raises:
        UserError: servers make no whole pipelines.
    """
    job = setting.ground.job
    places = list(
        itertools.product(
            axes.mtbf or (0.0,),
            axes.servers or (job.pipelines * job.depth,),
            axes.micro_batches or (job.micro_batches,),
        )
    )
    for _, servers, _ in places:
        if servers < job.depth:
            raise UserError(f"--sweep: {servers} servers make no pipeline of {job.depth} stages; give more")
    cells: dict[int, Cell] = {}
    with pool(min(len(places), processors())) as executor:
        pending = {executor.submit(_cell, setting, *place): number for number, place in enumerate(places)}
        for done in as_completed(pending):
            cells[pending[done]] = done.result()
            advance(f"{len(cells)} of {len(places)} places of the map")
    return tuple(cells[number] for number in range(len(places)))


def sweep_table(cells: Sequence[Cell]) -> bytes:
    """As CSV, a line per place and policy."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["mtbf_seconds", "servers", "micro_batches", "policy", "value", "low", "high"])
    for cell in cells:
        for name, value in cell.values.items():
            place = (cell.mtbf, cell.servers, cell.micro_batches)
            writer.writerow([*place, name, value, cell.low[name], cell.high[name]])
    return text.getvalue().encode()


def _cell(setting: StudySetting, mtbf: float, servers: int, micro_batches: int) -> Cell:
    old = setting.ground.job
    job = msgspec.structs.replace(old, pipelines=servers // old.depth, micro_batches=micro_batches)
    servers = job.pipelines * job.depth
    rates = Rates(job, setting.ground.layers)
    values: dict[str, list[float]] = {name: [] for name in setting.policies}
    spread: dict[str, list[float]] = {name: [] for name in setting.policies}
    for seed, outages in enumerate(_traces(setting, mtbf, servers)):
        # An iteration is longer in the proportion of its micro-batches.
        seconds = setting.ground.iteration * (micro_batches + job.depth - 1) / (old.micro_batches + old.depth - 1)
        failures = outages.failures_per_second * servers / outages.nodes
        ground = Ground(job, seconds, setting.ground.layers, failures)
        deal = dealt(StudySetting(ground, outages, setting.policies, 1), seed)
        for name in setting.policies:
            for measured in MEASURED if seed == 0 else (TYPICAL,):
                policy = make_policy(name, ground, rates, measured)
                value = simulate(policy, job.pipelines, job.depth, deal).value
                spread[name].append(value)
                if measured is TYPICAL:
                    values[name].append(value)
    return Cell(
        mtbf=mtbf,
        servers=servers,
        micro_batches=micro_batches,
        values={name: fmean(each) for name, each in values.items()},
        low={name: min(each) for name, each in spread.items()},
        high={name: max(each) for name, each in spread.items()},
    )


def _traces(setting: StudySetting, mtbf: float, servers: int) -> Iterator[Outages]:
    for seed in range(setting.seeds):
        if mtbf:
            model = calibrated(load_outages("language-model-cluster"))
            model = msgspec.structs.replace(model, rate=86_400 / mtbf)
            yield generate(model, servers + 64, setting.outages.seconds, seed)
        else:
            yield setting.outages


def _seconds(text: str) -> float:
    seconds = float(text[:-1]) * 86_400 if text[-1:] == "d" and _is_whole(text[:-1]) else parse_duration(text)
    if not seconds > 0:
        raise UserError(f"--sweep: mtbf is {text}: give a time above 0, such as 240d")
    return seconds


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _whole(axis: str, text: str) -> int:
    if not _is_whole(text) or not int(text):
        raise UserError(f"--sweep: {axis} has {text!r}: give whole numbers above 0")
    return int(text)
