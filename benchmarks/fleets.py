"""What moving layers keeps of the work bound: over a trace, after failures, and what templates take.

Usage: python -m benchmarks.fleets [templates | failures | trace] [--trace FILE] [--micro-batches M,...] [--seeds N]

    templates  the processor's time for the templates of 96 layers on 24 and 64 servers, for all numbers of servers
    failures   8 x 8 with 64 and 256 micro-batches, if no others are given, and 1, 2 and 4 dead servers in the first, a
               middle or the last stage
    trace      6 x 4 over a trace of live servers (rows of hours and how many live), which of them die drawn at random

96 layers of equal cost, F = I = W = 1 and optimizer 3 each; a server has memory for the activations of 2P stages, and
holds the layers of 1 1/3 stages at most; pipelines have 2P servers at most. Fault-free 1F1B takes 8 s. Layers of 0.6 GB
are copied at 10 GB/s into each server while training goes on re-routed; applying a placement stops all for an
iteration; a death stops them for 0.2 s and takes back half of an iteration. Every period is that of a plan of all
pipelines together. The work bound is all work of an iteration, with the optimizer steps of D pipelines, over all live
servers: fewer pipelines step less, and can be above it.
"""

import argparse
import csv
import random
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from recycle.job import Job, Server
from recycle.placing.decision import Move, Outlook, decide
from recycle.placing.fleet import Fleet, choose_fleet, fleet_job
from recycle.placing.layers import Layer, Model, Run
from recycle.placing.templates import Templates, make_templates
from recycle.placing.transition import Taken, take_places
from recycle.planner.assemble import baseline_period
from recycle.planner.fleets import STAGGERED, plan_fleet, proven_period
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves

LAYERS, BYTES, BANDWIDTH = 96, 600_000_000, 10e9
ITERATION, RECOVERY = 8.0, 0.2
ONCE = Effort((MaxMoves(1),), "1 move")
SURVIVED = 1
"""Failures that a fleet leaves a copy of every layer at, whichever they are."""


class Setting(msgspec.Struct, frozen=True):
    """A job whose layers may move.

    Attributes:
        pipelines: D.
        depth: P.
        micro_batches: M.
        templates: of its model.
    """

    pipelines: int
    depth: int
    micro_batches: int
    templates: Templates

    @property
    def model(self) -> Model:
        """Its layers."""
        return self.templates.model

    @property
    def total(self) -> int:
        """Micro-batches of all pipelines."""
        return self.pipelines * self.micro_batches

    def baseline(self) -> int:
        """Period of fault-free 1F1B."""
        runs = stage_runs(self.depth)
        stages = tuple(map(self.model.stage, runs))
        return baseline_period(Job(self.pipelines, self.micro_batches, stages, (0,) * (self.depth - 1)))

    def work_bound(self, live: int) -> float:
        """All work of an iteration over the live servers."""
        whole = (0, LAYERS)
        return (self.total * self.model.work(whole) + self.pipelines * self.model.update(whole)) / live

    def fleet(self, live: int) -> Fleet:
        """The best fleet of so many servers."""
        fleet = choose_fleet(self.templates, live, self.total, proven_period(self.model), SURVIVED)
        assert fleet is not None
        return fleet


def stage_runs(depth: int) -> list[Run]:
    return [(place * LAYERS // depth, (place + 1) * LAYERS // depth) for place in range(depth)]


def make_setting(pipelines: int, depth: int, micro_batches: int) -> Setting:
    layer = Layer(1, 1, 1, 3)
    model = Model((layer,) * LAYERS, 2 * depth * (LAYERS // depth))
    templates = make_templates(model, pipelines * depth, micro_batches)
    least = -(-3 * depth // 4)
    long = {servers: each for servers, each in templates.by_servers.items() if least <= servers <= 2 * depth}
    return Setting(pipelines, depth, micro_batches, Templates(model, long))


def shape(fleet: Fleet) -> str:
    return " + ".join(f"{each.template.servers}s x {each.micro_batches}m" for each in fleet.pipelines)


def show_templates() -> None:
    """The processor's time for all templates."""
    for servers in (24, 64):
        began = time.process_time()
        found = make_templates(Model((Layer(1, 1, 1, 3),) * LAYERS, 192), servers, 8)
        spent = time.process_time() - began
        print(f"{servers} servers x {LAYERS} layers: {len(found.by_servers)} templates in {spent:.3f} s")


def show_failures(numbers: list[int]) -> None:
    """Rows of dead servers in a stage: what the best fleet keeps, and what it takes to get there."""
    print("M  stage  dead  1F1B  re-routed  placed  of the work bound (re-routed)  bytes  fleet")
    for micro_batches in numbers:
        setting = make_setting(8, 8, micro_batches)
        runs, baseline = stage_runs(8), setting.baseline()
        job = Job(8, micro_batches, tuple(map(setting.model.stage, runs)), (0,) * 7)
        for stage in (0, 4, 7):
            for dead in (1, 2, 4):
                gone = {Server(7 - number, stage) for number in range(dead)}
                fleet = setting.fleet(64 - dead)
                placed = plan_fleet(setting.model, fleet, ONCE).period
                rerouted = make_plan(job, gone, STAGGERED, ONCE, "compute").period
                held = {each: range(*runs[each.stage]) for each in job.servers() if each not in gone}
                moved = take_places(fleet, held, {each: each.pipeline for each in held})
                copied = sum(moved.gained.values()) * BYTES
                bound = setting.work_bound(64 - dead)
                shares = f"{bound / placed:.3f} ({bound / rerouted:.3f})"
                figures = (micro_batches, stage, dead, baseline, rerouted, placed, shares, f"{copied / 1e9:.0f} GB")
                print("  ".join(map(str, figures)), f" {shape(fleet)}", flush=True)


class Cluster:
    """A run whose servers die and come back, and what it has made so far.

    Args:
        setting: what is trained.
        seed: of who dies and who comes back.
    """

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self.random = random.Random(seed)
        self.unit = ITERATION / setting.baseline()
        self.periods: dict[Fleet, int] = {}
        nodes = [Server(number, 0) for number in range(setting.pipelines * setting.depth)]
        self.live = set(nodes)
        self.dead: list[Server] = []
        self.fleet = setting.fleet(len(nodes))
        places = iter(nodes)
        self.places = tuple(tuple(next(places) for _ in each.template.runs) for each in self.fleet.pipelines)
        self.made = self.moves = self.copied = 0.0

    def seconds(self, fleet: Fleet) -> float:
        """Time of an iteration of a fleet whose servers all live."""
        if fleet not in self.periods:
            self.periods[fleet] = plan_fleet(self.setting.model, fleet, ONCE).period
        return self.periods[fleet] * self.unit

    def rerouted(self) -> float:
        """Time of an iteration of the present fleet around its dead servers."""
        gone = [
            Server(pipeline, place)
            for pipeline, servers in enumerate(self.places)
            for place, server in enumerate(servers)
            if server not in self.live
        ]
        if not gone:
            return self.seconds(self.fleet)
        job = fleet_job(self.setting.model, self.fleet)
        return make_plan(job, gone, STAGGERED, ONCE, "compute").period * self.unit

    def transition(self, fleet: Fleet) -> Taken:
        """Which live server takes which place of a fleet, from what they hold now."""
        held = dict.fromkeys(self.live, range(0))
        pipelines = dict.fromkeys(self.live, -1)
        for number, (formed, servers) in enumerate(zip(self.fleet.pipelines, self.places, strict=True)):
            for server, run in zip(servers, formed.template.runs, strict=True):
                if server in self.live:
                    held[server], pipelines[server] = range(*run), number
        return take_places(fleet, held, pipelines)

    def change(self, died: bool) -> None:
        """One server dies or comes back."""
        if died:
            server = self.random.choice(sorted(self.live))
            self.live.remove(server)
            self.dead.append(server)
        else:
            self.dead.remove(server := self.random.choice(self.dead))
            self.live.add(server)

    def go_on(self, died: bool, seconds: float, until: float) -> None:
        """Train until the next change, and move layers if that pays."""
        now = self.rerouted()
        fleet = self.setting.fleet(len(self.live))
        then = self.seconds(fleet)
        if died:
            self.made -= 0.5
            seconds -= RECOVERY
        taken = self.transition(fleet)
        copied, busiest = sum(taken.gained.values()) * BYTES, max(taken.gained.values()) * BYTES
        move = Move(now, then, copied, busiest, BANDWIDTH, pause=then)
        if not decide(move, until).moves or seconds < move.copying + move.pause:
            self.made += seconds / now
            return
        self.made += move.copying / now + (seconds - move.copying - move.pause) / then
        self.moves += 1
        self.copied += copied
        self.fleet, self.places = fleet, tuple(taken.crews.values())


def changes_of(path: Path) -> Iterator[tuple[float, bool, float]]:
    """Every change of a trace: its time, whether a server dies, and how long it is until the next one, in seconds.

    Those between two rows are spread evenly over the time between them.
    """
    with path.open() as file:
        rows = [row for row in csv.reader(file) if row and not row[0].startswith("#")][1:]
    counts = [(float(hours) * 3600, int(live)) for hours, live in rows]
    found: list[tuple[float, bool]] = []
    for (before, had), (after, has) in pairwise(counts):
        number = abs(has - had)
        found += [(before + (after - before) * (each + 1) / number, has < had) for each in range(number)]
    ends = [time for time, _ in found[1:]] + [counts[-1][0]]
    for (begin, died), end in zip(found, ends, strict=True):
        yield begin, died, end - begin


def show_trace(path: Path, numbers: list[int], seeds: int) -> None:
    """A row for each number of micro-batches: throughput over the trace against fault-free 1F1B and the work bound."""
    changes = list(changes_of(path))
    whole = changes[-1][0] + changes[-1][2]
    deaths = sum(died for _, died, _ in changes)
    print(f"{deaths} deaths and {len(changes) - deaths} returns in {whole / 3600:.2f} h; seeds 0 to {seeds - 1}")
    print("M  of 1F1B  work bound  share  moves  GB a move")
    for micro_batches in numbers:
        setting = make_setting(6, 4, micro_batches)
        unit = ITERATION / setting.baseline()
        for seed in range(seeds):
            run = Cluster(setting, seed)
            run.made = changes[0][0] / run.seconds(run.fleet)
            bound = changes[0][0] / (setting.work_bound(24) * unit)
            for _, died, seconds in changes:
                run.change(died)
                dead = max(len(run.dead), 1)
                outlook = Outlook(whole * len(run.live) / deaths, whole * dead / (len(changes) - deaths))
                run.go_on(died, seconds, outlook.until_change(len(run.live), dead))
                bound += seconds / (setting.work_bound(len(run.live)) * unit)
            made, most = (each * ITERATION / whole for each in (run.made, bound))
            print(
                f"{micro_batches}  {made:.3f}  {most:.3f}  {made / most:.3f}  {run.moves:.0f}  "
                f"{run.copied / max(run.moves, 1) / 1e9:.0f}",
                flush=True,
            )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", nargs="?", choices=("templates", "failures", "trace"), default="templates")
    parser.add_argument("--trace", type=Path, help="a file of hours and live servers")
    parser.add_argument(
        "--micro-batches", help="of a pipeline; default: 6,12,24,64 over a trace, 64,256 after failures"
    )
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    named = arguments.micro_batches or ("6,12,24,64" if arguments.section == "trace" else "64,256")
    numbers = [int(each) for each in named.split(",")]
    if arguments.section == "templates":
        show_templates()
    elif arguments.section == "failures":
        show_failures(numbers)
    elif arguments.trace is None:
        parser.error("trace: give --trace FILE")
    else:
        show_trace(arguments.trace, numbers, arguments.seeds)


if __name__ == "__main__":
    main()
