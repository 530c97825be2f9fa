"""Are fault-free plans ever behind the published schedulers of Qi et al.?

Usage: python -m benchmarks.published FOLDER [v-shaped | standard] [--servers P,...] [--micro-batches M,...]
       [--budget S]

FOLDER holds their schedulers: megatron/core/pipeline_parallel/zerobubble/scheduler of
https://github.com/sail-sg/zero-bubble-pipeline-parallelism.

    v-shaped    two half-stages per server: their greedy V schedules (zbv.py; zbv_greedy.py where it keeps to memory)
    standard    one chunk per server: the best of the orders that begin their search (zb.py)

Their schedulers get the same costs, latency and memory, and their orders are timed by the project's clock. They know no
heavier last half-stage: there it is the order that they find without it. Limits are in whole stages: P, 1.5 P and 2P.
"""

import argparse
import contextlib
import importlib.util
import io
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

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
                graph = self.v_controlled.PipelineGraph(servers, count, memory, *costs, latency)
                blocks = {"min": graph.stable_pattern_v_min, "half": graph.stable_pattern_v_half}[memory](servers)
                doubled = [cost for cost in costs for _ in range(2)]
                orders = graph.schedule_from_pattern(blocks, count, doubled)[2]
                return {
                    Server(0, server): [
                        ((each % 2 if each < 2 else 1 - each % 2) * count + number) * 3 + each // 2
                        for each, number in order
                    ]
                    for server, order in enumerate(orders)
                }

            yield controlled

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


def compare(published: Published, form: str, servers: int, micro_batches: int, seconds: float) -> Iterator[bool]:
    """The rows of one shape; whether the plan is behind, for each."""
    limits = (servers, servers + servers // 2, 2 * servers)
    for costs, latency, limit, heavier in itertools.product(COSTS, LATENCIES, limits, (1, 2)):
        job = placed_job(form, (1, servers, micro_batches), costs, latency, limit, heavier)
        public = min((timed(job, order) for order in published.orders(form, job, costs, latency, limit)), default=0)
        plan = make_plan(job, (), Mode(), Effort((MaxSeconds(seconds),), f"{seconds:g} s"), "compute")
        behind = 0 < public < plan.period
        text = ":".join(map(str, costs)) + (" heavy" if heavier > 1 else "")
        ratios = f"{plan.period / plan.bound:.3f} {public / plan.period:.3f}"
        row = f"{servers} x {micro_batches:<4} {text:14} {latency:<8} {limit:<6} {plan.period:<7} {plan.bound:<7}"
        print(f"{form:9} {row} {public:<9g} {ratios}{'  behind' if behind else ''}", flush=True)
        yield behind


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("section", nargs="?", choices=("v-shaped", "standard"), default="v-shaped")
    parser.add_argument("--servers", default="4,8,16,32")
    parser.add_argument("--micro-batches", default="1,2,4", help="per server of a pipeline")
    parser.add_argument("--budget", type=float, default=5.0)
    arguments = parser.parse_args()
    published = Published(arguments.folder)
    print(
        "form, P x M, F:I:W of a half-stage, latency, limit, period, bound, published, period/bound, published/period"
    )
    behind = [
        each
        for servers in map(int, arguments.servers.split(","))
        for times in map(int, arguments.micro_batches.split(","))
        for each in compare(published, arguments.section, servers, times * servers, arguments.budget)
    ]
    print(f"{sum(behind)} of {len(behind)} plans are behind the best published order")


if __name__ == "__main__":
    main()
