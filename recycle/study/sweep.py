"""Maps: which policy wins, for which size of cluster, number of micro-batches and rate of failures."""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from statistics import fmean
from typing import NamedTuple

import msgspec

from recycle.digits import parse_whole
from recycle.duration import parse_duration
from recycle.errors import UserError
from recycle.faults.generator import calibrated, generate
from recycle.faults.outages import load_outages
from recycle.files import csv_text
from recycle.processors import pool, processors
from recycle.study.compare import StudySetting, sampled
from recycle.study.failures import FailureHistory
from recycle.study.rates import Ground, Rates, require_few
from recycle.study.registry import OWN, make_policy
from recycle.study.simulator import simulate

AXES = ("mtbf-of-server", "servers", "micro-batches")


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
        goodput: of each policy, the mean over samples with the typical constants.
        low: of each policy, the least over samples and constants.
        high: likewise, the greatest.
    """

    mtbf: float
    servers: int
    micro_batches: int
    goodput: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]

    @property
    def rival(self) -> str:
        """The best of the rivals with the typical constants; empty if none is compared."""
        rivals = [name for name in self.goodput if name not in OWN]
        return max(rivals, key=lambda name: self.goodput[name], default="")

    def loses(self, name: str) -> tuple[str, ...]:
        """The rivals that one of ours is not ahead of, with the constants that favour them the most."""
        return tuple(rival for rival in self.goodput if rival not in OWN and self.high[rival] >= self.goodput[name])

    def text(self, name: str) -> str:
        """A policy's goodput with its interval."""
        return f"{self.goodput[name]:.4f} ({self.low[name]:.4f} to {self.high[name]:.4f})"


def parse_axes(text: str) -> Axes:
    """Read ``mtbf-of-server=100d,400d servers=100,1000 micro-batches=6,64``.

    Axes are separated by spaces, semicolons or commas.

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
        values.setdefault(axis, []).extend([value] if value else [])
    for each, given in values.items():
        if not given:
            raise UserError(f"--sweep: {each} has no value; give some, or leave it out")
    return Axes(
        mtbf=tuple(map(_seconds, values.get("mtbf-of-server", []))),
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
        require_few(servers)
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
    header = ("mtbf_seconds", "servers", "micro_batches", "policy", "goodput", "low", "high")
    rows = (
        (cell.mtbf, cell.servers, cell.micro_batches, name, goodput, cell.low[name], cell.high[name])
        for cell in cells
        for name, goodput in cell.goodput.items()
    )
    return csv_text([header, *rows]).encode()


def _cell(setting: StudySetting, mtbf: float, servers: int, micro_batches: int) -> Cell:
    old = setting.ground.job
    job = msgspec.structs.replace(old, pipelines=servers // old.depth, micro_batches=micro_batches)
    servers = job.pipelines * job.depth
    rates = Rates(job, setting.ground.layers)
    # An iteration is longer in the proportion of its micro-batches.
    seconds = setting.ground.iteration * (micro_batches + job.depth - 1) / (old.micro_batches + old.depth - 1)
    means: dict[str, list[float]] = {name: [] for name in setting.policies}
    spread: dict[str, list[float]] = {name: [] for name in setting.policies}
    for seed in range(setting.seeds):
        history = setting.history if not mtbf else _generated(setting, mtbf, servers, seed)
        ground = Ground(job, seconds, setting.ground.layers, history.failures_per_second(servers))
        failures = sampled(StudySetting(ground, history, setting.policies, 1), seed)
        for name in setting.policies:
            outcomes = [
                simulate(make_policy(name, ground, rates, each), job.pipelines, job.depth, failures).goodput
                for each in setting.sets
            ]
            spread[name] += outcomes
            means[name].append(outcomes[-1])
    return Cell(
        mtbf=mtbf,
        servers=servers,
        micro_batches=micro_batches,
        goodput={name: fmean(each) for name, each in means.items()},
        low={name: min(each) for name, each in spread.items()},
        high={name: max(each) for name, each in spread.items()},
    )


def _generated(setting: StudySetting, mtbf: float, servers: int, seed: int) -> FailureHistory:
    model = msgspec.structs.replace(calibrated(load_outages("language-model-cluster")), rate=86_400 / mtbf)
    return FailureHistory.recorded(generate(model, servers + 64, setting.history.seconds, seed))


def _seconds(text: str) -> float:
    seconds = parse_duration(text)
    if not seconds > 0:
        raise UserError(f"--sweep: mtbf-of-server is {text}: give a time above 0, such as 240d")
    return seconds


def _whole(axis: str, text: str) -> int:
    try:
        number = parse_whole(text)
    except ValueError:
        number = 0
    if not number:
        raise UserError(f"--sweep: {axis} has {text!r}: give whole numbers above 0")
    return number
