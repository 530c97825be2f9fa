"""How good plans for servers of several chunks are: period over the proved bound, and over one chunk per server.

Usage: python -m benchmarks.placements [fault-free | failures] [--servers P,...] [--micro-batches M,...] [--budget S]
       [--shape DxPxM] [--dead N,...] [--heavier N,...] [--placement FORM] [--limits 1,2]

    fault-free  one pipeline, V-shaped and interleaved with two chunks per server
    failures    64 pipelines x 16 servers x 64 micro-batches, if no other shape is given, with 0, 1, 2 and 8 dead
                servers, drawn with a printed seed, and with a last half-stage that takes once and twice as much

--dead, --heavier, --placement and --limits choose among the rows.

A half-stage takes the costs that are named, F:I:W, and a stage of the standard placement, with which they are compared
where nobody is dead, twice as much. Limits are in whole stages: P and 2P. Everything runs on one core.
"""

import argparse
import itertools
import random
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from benchmarks.shapes import sizes
from recycle.job import Job, Stage
from recycle.placement import parse_placement
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxSeconds

COSTS = ((1, 1, 1), (10, 12, 7))
LATENCIES = (0, 1)
FORMS = ("v-shaped", "interleaved:2")
DEAD = (0, 1, 2, 8)
SEED = 0


class Rows(NamedTuple):
    """Which rows of a shape are planned.

    Attributes:
        forms: the placements.
        limits: in P whole stages.
        seconds: that a search may take.
    """

    forms: Sequence[str]
    limits: Sequence[int]
    seconds: float


def placed_job(
    form: str, shape: Sequence[int], costs: Sequence[int], latency: int, stages: int, heavier: int = 1
) -> Job:
    """A job of D x P x M with servers of one or two chunks, which take as much work and memory in all.

    Args:
        form: the placement's short form.
        shape: D, P and M.
        costs: F, I and W of a half-stage.
        latency: between neighbouring chunks.
        stages: the limit, in whole stages.
        heavier: how many times as much the last half-stage takes.
    """
    pipelines, servers, micro_batches = shape
    placement = parse_placement(form, servers)
    count = sum(map(len, placement))
    halves = 2 * servers // count
    forward, back, own = costs
    weights = [halves] * (count - 1) + [halves - 1 + heavier]
    scaled = [(forward * weight, back * weight, own * weight) for weight in weights]
    chunks = tuple(Stage(*each, 0, 0, halves, 0, 2 * stages) for each in scaled)
    return Job(pipelines, micro_batches, chunks, (latency,) * (count - 1), placement=placement)


def planned(job: Job, dead: int, seconds: float) -> tuple[Plan, float]:
    """A plan around some dead servers, and the processor's seconds that it took."""
    gone = random.Random(SEED).sample(job.servers(), dead)
    began = time.process_time()
    plan = make_plan(job, gone, Mode(), Effort((MaxSeconds(seconds),), f"{seconds:g} s"), "compute")
    return plan, time.process_time() - began


def show(row: Iterable[object]) -> None:
    """A row of the table."""
    widths = (14, 12, 9, 8, 8, 6, 9, 8, 7, 22, 9, 8)
    print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), flush=True)


def compare(rows: Rows, shape: Sequence[int], dead: int, heavier: int = 1) -> None:
    """The rows of one shape."""
    pipelines, servers, micro_batches = shape
    seconds = rows.seconds
    name = f"{pipelines} x {servers} x {micro_batches}"
    for costs, latency, stages in itertools.product(COSTS, LATENCIES, [times * servers for times in rows.limits]):
        alone = None
        if not dead:
            alone = planned(placed_job("standard", shape, costs, latency, stages, heavier), dead, seconds)[0]
        for form in rows.forms:
            plan, spent = planned(placed_job(form, shape, costs, latency, stages, heavier), dead, seconds)
            text = ":".join(map(str, costs)) + ("" if heavier == 1 else " heavy")
            ratio, gain = f"{plan.period / plan.bound:.3f}", f"{alone.period / plan.period:.3f}" if alone else "-"
            by = plan.provenance.bound_by
            show((form, name, text, latency, stages, dead, plan.period, plan.bound, ratio, by, gain, f"{spent:.1f}"))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", nargs="?", choices=("fault-free", "failures"), default="fault-free")
    parser.add_argument("--servers", default="4,8,16,32")
    parser.add_argument("--micro-batches", default="1,2,4", help="per server of a pipeline; 128 in all at most")
    parser.add_argument("--budget", type=float, default=5.0)
    parser.add_argument("--dead", default=",".join(map(str, DEAD)), help="how many servers of failures")
    parser.add_argument("--heavier", default="1,2", help="how many times as much the last half-stage of failures takes")
    parser.add_argument("--placement", choices=FORMS, help="only this one")
    parser.add_argument("--limits", default="1,2", help="in P whole stages")
    parser.add_argument("--shape", type=sizes(3), default=(64, 16, 64), metavar="DxPxM", help="of failures")
    arguments = parser.parse_args()
    head = ("placement", "D x P x M", "F:I:W", "latency", "limit", "dead", "period", "bound", "ratio", "bound by")
    show((*head, "against 1", "seconds"))
    forms = (arguments.placement,) if arguments.placement else FORMS
    rows = Rows(forms, tuple(map(int, arguments.limits.split(","))), arguments.budget)
    if arguments.section == "failures":
        print(f"dead servers drawn with seed {SEED}")
        for heavier in map(int, arguments.heavier.split(",")):
            for dead in map(int, arguments.dead.split(",")):
                compare(rows, arguments.shape, dead, heavier)
        return
    for servers in map(int, arguments.servers.split(",")):
        for times in map(int, arguments.micro_batches.split(",")):
            compare(rows, (1, servers, times * servers), 0)
        compare(rows, (1, servers, 2 * servers), 0, heavier=2)


if __name__ == "__main__":
    main()
