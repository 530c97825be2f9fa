"""Are fault-free plans ever behind the published schedulers of Qi et al.?

Usage: python -m benchmarks.published FOLDER [v-shaped | standard] [--servers P,...] [--micro-batches M,...]
       [--limits N,...] [--rows FILE] [--budget S]

FOLDER holds their schedulers: megatron/core/pipeline_parallel/zerobubble/scheduler of
https://github.com/sail-sg/zero-bubble-pipeline-parallelism.

    v-shaped    two half-stages per server: their greedy V schedules (zbv.py; zbv_greedy.py where it keeps to memory)
    standard    one chunk per server: the best of the orders that begin their search (zb.py)

Their schedulers get the same costs, latency and memory, and their orders are timed by the project's clock. They know no
heavier last half-stage: there it is the order that they find without it. Limits are in whole stages: P, 1.5 P and 2P.
With --rows every row is written to a file at once, and the same command goes on where the file ends.
"""

import argparse
import contextlib
import importlib.util
import io
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from benchmarks.placements import COSTS, LATENCIES, placed_job
from recycle.job import Job, Server
from recycle.plan.mode import Mode
from recycle.plan.timing import Deadlock
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.evaluate import value
from recycle.planner.model.problem import Programs, make_problem
from recycle.planner.model.stopping import MaxSeconds

PACKAGE = "megatron.core.pipeline_parallel.zerobubble.scheduler"
"""Where the published files look for each other."""


def load(folder: Path, name: str) -> Any:
    """One of the published files, without what else is in its package."""
    spec = importlib.util.spec_from_file_location(f"{PACKAGE}.{name}", folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Case(msgspec.Struct, frozen=True):
    """What is planned.

    Attributes:
        form: the placement's short form.
        servers: P.
        micro_batches: M.
        costs: F, I and W of a half-stage.
        latency: between neighbouring chunks.
        limit: of a server's memory, in whole stages.
        heavier: how many times as much the last half-stage takes.
    """

    form: str
    servers: int
    micro_batches: int
    costs: tuple[int, int, int]
    latency: int
    limit: int
    heavier: int


class Row(msgspec.Struct, frozen=True):
    """A plan's period and bound, and the period of the best published order, if there is one."""

    case: Case
    period: int
    bound: int
    published: int | None

    @property
    def behind(self) -> bool:
        """Whether the published order is shorter."""
        return self.published is not None and self.published < self.period


class Published:
    """The published schedulers.

    Args:
        folder: where their files are.
    """

    def __init__(self, folder: Path) -> None:
        load(folder, "graph")
        self.v_shaped = load(folder, "zbv")
        self.v_controlled = load(folder, "zbv_greedy")
        # The order that they begin with is found without their solver.
        sys.modules.setdefault("pulp", ModuleType("pulp"))
        self.standard = load(folder, "zb")
        self.config = sys.modules[f"{PACKAGE}.graph"].GraphConfig
        # These orders take long to find, and are the same whatever tasks cost.
        self._controlled = lru_cache(self._controlled_orders)

    def orders(self, form: str, job: Job, costs: Sequence[int], latency: int, limit: int) -> Iterator[Programs]:
        """Every order that they find for a job of one pipeline and keeps to memory."""
        makers = self._v_shaped if form == "v-shaped" else self._standard
        problem = make_problem(job, (), Mode())
        for make in makers(job, costs, latency, limit):
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    programs = make()
            except (AssertionError, ValueError, IndexError):
                continue
            if all(problem.fits(server.stage, tasks) for server, tasks in programs.items()):
                yield programs

    def _v_shaped(self, job: Job, costs: Sequence[int], latency: int, limit: int) -> Iterator[Callable[[], Programs]]:
        servers, count = len(job.chunks), job.micro_batches
        for fill_b, fill_f in itertools.product((True, False), repeat=2):

            def greedy(fill_b: bool = fill_b, fill_f: bool = fill_f) -> Programs:
                graph = self.v_shaped.PipelineGraph(servers, count, *costs, latency, 1, 0, -1, 2 * limit)
                schedule = graph.try_v_schedule(fill_b=fill_b, fill_f=fill_f)[0]
                return {
                    Server(0, server): [
                        ((chunk if kind == 0 else 1 - chunk) * count + number) * 3 + kind
                        for kind, chunk, number in order
                    ]
                    for server, order in enumerate(schedule)
                }

            yield greedy
        for memory in ("min", "half"):

            def controlled(memory: str = memory) -> Programs:
                orders = self._controlled(servers, count, memory)
                return {
                    Server(0, server): [
                        ((each % 2 if each < 2 else 1 - each % 2) * count + number) * 3 + each // 2
                        for each, number in order
                    ]
                    for server, order in enumerate(orders)
                }

            yield controlled

    def _controlled_orders(self, servers: int, count: int, memory: str) -> Any:
        graph = self.v_controlled.PipelineGraph(servers, count, memory, 1, 1, 1, 0)
        blocks = {"min": graph.stable_pattern_v_min, "half": graph.stable_pattern_v_half}[memory](servers)
        return graph.schedule_from_pattern(blocks, count, [1] * 6)[2]

    def _standard(self, job: Job, costs: Sequence[int], latency: int, limit: int) -> Iterator[Callable[[], Programs]]:
        depth, count = job.depth, job.micro_batches
        config = self.config(
            mem_f=[1.0] * depth,
            mem_b=[0.0] * depth,
            mem_w=[-1.0] * depth,
            max_mem=[float(limit)] * depth,
            cost_f=[2.0 * costs[0]] * depth,
            cost_b=[2.0 * costs[1]] * depth,
            cost_w=[2.0 * costs[2]] * depth,
            cost_comm=float(latency),
            n_stages=depth,
            n_micro=count,
        )
        for early, gradients, fills in itertools.product((True, False), repeat=3):

            def greedy(early: bool = early, gradients: bool = gradients, fills: bool = fills) -> Programs:
                graph = self.standard.Graph.build_graph(depth, count, config)
                ends = graph.manual_order(early, gradients, fills)[1]
                return {
                    Server(0, stage): sorted(
                        (number * 3 + kind for number in range(count) for kind in range(3)),
                        key=lambda task: ends[graph.get_id(task % 3, stage, task // 3)],
                    )
                    for stage in range(depth)
                }

            yield greedy


def timed(job: Job, programs: Programs) -> float:
    """An order's period, infinite if its servers wait for each other."""
    try:
        return value(make_problem(job, (), Mode()), programs)
    except Deadlock:
        return float("inf")


def compare(published: Published, case: Case, seconds: float) -> Row:
    """A plan against the best published order."""
    shape = (1, case.servers, case.micro_batches)
    job = placed_job(case.form, shape, case.costs, case.latency, case.limit, case.heavier)
    orders = published.orders(case.form, job, case.costs, case.latency, case.limit)
    public = min((timed(job, order) for order in orders), default=float("inf"))
    plan = make_plan(job, (), Mode(), Effort((MaxSeconds(seconds),), f"{seconds:g} s"), "compute")
    return Row(case, plan.period, plan.bound, None if public == float("inf") else int(public))


def show(row: Row) -> None:
    """A line of the table."""
    case = row.case
    text = ":".join(map(str, case.costs)) + (" heavy" if case.heavier > 1 else "")
    published = "-" if row.published is None else f"{row.published:<9} {row.published / row.period:.3f}"
    head = f"{case.form:9} {case.servers} x {case.micro_batches:<4} {text:14} {case.latency:<8} {case.limit:<6}"
    ratio = f"{row.period / row.bound:.3f}"
    print(f"{head} {row.period:<7} {row.bound:<7} {ratio} {published}{'  behind' if row.behind else ''}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("section", nargs="?", choices=("v-shaped", "standard"), default="v-shaped")
    parser.add_argument("--servers", default="4,8,16,32")
    parser.add_argument("--micro-batches", default="1,2,4", help="per server of a pipeline")
    parser.add_argument("--limits", default="2,3,4", help="in half-stages per server of a pipeline")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="where rows are kept, one of JSON a line")
    parser.add_argument("--budget", type=float, default=5.0)
    arguments = parser.parse_args()
    published = Published(arguments.folder)
    kept = arguments.rows.read_bytes().splitlines() if arguments.rows and arguments.rows.exists() else []
    rows = {row.case: row for row in (msgspec.json.decode(line, type=Row) for line in kept)}
    print(
        "form, P x M, F:I:W of a half-stage, latency, limit, period, bound, period/bound, published, published/period"
    )
    shapes = itertools.product(*(map(int, text.split(",")) for text in (arguments.servers, arguments.micro_batches)))
    halves = [int(text) for text in arguments.limits.split(",")]
    cases = [
        Case(arguments.section, servers, times * servers, costs, latency, servers * half // 2, heavier)
        for servers, times in shapes
        for costs, latency, half, heavier in itertools.product(COSTS, LATENCIES, halves, (1, 2))
    ]
    for case in cases:
        if case not in rows:
            rows[case] = compare(published, case, arguments.budget)
            if arguments.rows:
                with arguments.rows.open("ab") as file:
                    file.write(msgspec.json.encode(rows[case]) + b"\n")
        show(rows[case])
    print(f"{sum(rows[case].behind for case in cases)} of {len(cases)} plans are behind the best published order")


if __name__ == "__main__":
    main()
