"""How fast and how good the planner is: one table per question.

Usage: python -m benchmarks.planner [SECTION ...] [--cases N] [--budget SECONDS] [--proof SECONDS]
       [--shape DxPxM] [--seed N]
       python -m benchmarks.planner pays [--stages 8] [--pipelines 2 4 8 16] [--micro-batches 8 16 32 64 128]
       [--moves 2000]

Sections (all of them by default):
    table       the worked example with its proved values: the fast planner, and the exact solver's proof
    small       random small jobs: the fast planner against proved optima
    large       64 x 16 x 64 with 0, 1, 2 and 8 failures: processor seconds to a lowered plan, and period / bound
    lookup      a look-up in a catalogue at 1,024 servers
    pays        the table "When it pays" of README: one dead server of a middle stage, by micro-batches and pipelines.
                F, I and W take a slot each and the optimizer none; every server has the memory of 1F1B's first stage.
                The same moves and the same seed give the same table on every machine.

The fast planner has 2 s for each plan if nothing is said. --shape gives large and lookup another job. Everything
runs on one core; imports are not counted.
"""

import argparse
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.shared import sizes
from harness.examples import paper_job
from recycle.job import Job, Server, Stage
from recycle.plan.catalogue import Catalogue
from recycle.plan.checker import check_plan
from recycle.plan.mode import Mode
from recycle.planner.anneal.improve import improve
from recycle.planner.catalogue import make_catalogue
from recycle.planner.exact.prove import solve
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.problem import Problem, make_problem
from recycle.planner.model.stopping import MaxMoves, MaxSeconds

FUSED, SPLIT, STAGGERED = Mode("fused", "global"), Mode("split", "global"), Mode()

TABLE: list[tuple[str, str, Mode, int | tuple[int, ...], int, int]] = [
    ("fault-free 1F1B", "", FUSED, (4, 3, 2, 1), 0, 27),
    ("fused", "W1_2", FUSED, (4, 3, 2, 1), 0, 36),
    ("fused", "W1_2", FUSED, 4, 0, 33),
    ("split", "W1_2", SPLIT, 4, 0, 29),
    ("split", "W1_2", SPLIT, 6, 0, 29),
    ("staggered", "W1_2", STAGGERED, 4, 1, 30),
    ("staggered", "W1_2", STAGGERED, 6, 0, 30),
    ("staggered", "W1_0", STAGGERED, 4, 0, 33),
    ("staggered", "W1_0", STAGGERED, 6, 0, 31),
    ("staggered", "W1_0", STAGGERED, 8, 0, 30),
    ("staggered", "W1_3", STAGGERED, 4, 0, 33),
    ("staggered", "W1_3", STAGGERED, 6, 0, 31),
    ("staggered", "W1_3", STAGGERED, 7, 0, 30),
    ("staggered", "W1_3", STAGGERED, 4, 1, 30),
    ("staggered", "W1_1", STAGGERED, 4, 1, 31),
    ("staggered", "W1_1", STAGGERED, 6, 1, 30),
    ("staggered", "W0_0,W1_1,W2_2,W0_3", STAGGERED, 4, 1, 33),
    ("staggered", "W0_2,W1_2", STAGGERED, 4, 1, 57),
    ("staggered", "W0_2,W1_2", STAGGERED, 4, 0, 58),
]


def effort(arguments: argparse.Namespace) -> Effort:
    return Effort((MaxSeconds(arguments.budget),), f"{arguments.budget:g} s")


def show(row: Iterable[object], widths: Sequence[int]) -> None:
    print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), flush=True)


def table(arguments: argparse.Namespace) -> None:
    widths = (16, 20, 13, 9, 8, 6, 9, 7, 12)
    show(("form", "dead", "limit", "released", "expected", "fast", "seconds", "proved", "seconds"), widths)
    for form, failed, mode, limit, released, expected in TABLE:
        problem = make_problem(
            paper_job(limit, released),
            [Server.parse(name) for name in failed.split(",") if name],
            mode,
        )
        began = time.perf_counter()
        found = improve(problem, [MaxSeconds(arguments.budget)])
        fast = time.perf_counter() - began
        began = time.perf_counter()
        proof = solve(problem, seconds=arguments.proof)
        exact = time.perf_counter() - began
        proved = proof.value if proof.status == "optimal" else f">={proof.bound}"
        show(
            (
                form,
                failed,
                limit,
                "I" if released else "W",
                expected,
                found.progress.value,
                f"{fast:.2f}",
                proved,
                f"{exact:.1f}",
            ),
            widths,
        )


def small_problem(random_: random.Random) -> Problem:
    """D <= 4, P <= 5, M <= 8; uneven costs, a heavier last stage, latency; failed servers that leave a peer."""
    pipelines, depth, micro_batches = random_.randint(2, 4), random_.randint(2, 5), random_.randint(2, 8)
    cost = random_.choice([(1, 1, 1), (10, 12, 7), (10, 12, 7), (2, 3, 2), (4, 5, 3)])
    heavier = random_.random() < 0.3
    stages = []
    limit = random_.choice([depth, depth + depth // 2, 2 * depth])
    released = random_.randint(0, 1)
    for stage in range(depth):
        forward, back, own = (each + each // 2 if heavier and stage == depth - 1 else each for each in cost)
        stages.append(Stage(forward, back, own, random_.choice([0, 3]) * cost[0], 0, 1, released, limit))
    latency = random_.choice([0, 0, 1])
    job = Job(pipelines, micro_batches, tuple(stages), (latency,) * (depth - 1))
    failed: list[Server] = []
    for _ in range(random_.randint(0, 3)):
        server = Server(random_.randrange(pipelines), random_.randrange(depth))
        if job.dead_servers([*failed, server]).live[server.stage]:
            failed.append(server)
    mode = random_.choice([STAGGERED] * 4 + [SPLIT, FUSED, Mode("split", "staggered", "free")])
    return make_problem(job, failed, mode)


def small(arguments: argparse.Namespace) -> None:
    random_ = random.Random(arguments.seed)
    widths = (12, 11, 10, 22, 10, 7, 9, 14, 9, 9)
    show(("shape", "F:I:W", "limit", "dead", "mode", "fast", "seconds", "optimum", "seconds", "excess"), widths)
    equal = proved = worst_slots = 0
    for _ in range(arguments.cases):
        problem = small_problem(random_)
        job = problem.job
        began = time.perf_counter()
        found = improve(problem, [MaxSeconds(arguments.budget)], seed=arguments.seed)
        fast = time.perf_counter() - began
        began = time.perf_counter()
        exact = solve(problem, seconds=arguments.proof, hint=found.programs)
        seconds = time.perf_counter() - began
        best = found.progress.value
        slot = max(max(cost) for cost in problem.cost)
        excess: object = "unproved"
        if exact.status == "optimal":
            proved += 1
            equal += best == exact.value
            excess = best - exact.value
            worst_slots = max(worst_slots, -(-(best - exact.value) // slot))
        optimum = exact.value if exact.status == "optimal" else f"{exact.bound}..{exact.value}"
        stage = job.stages[0]
        show(
            (
                f"{job.pipelines}x{job.depth}x{job.micro_batches}",
                f"{stage.forward}:{stage.input_gradient}:{stage.weight_gradient}",
                f"{stage.limit} {'I' if stage.released_at_input_gradient else 'W'}",
                ",".join(map(str, sorted(problem.dead))),
                f"{problem.mode.backward[:1]}{problem.mode.optimizer[:1]}{problem.mode.routing[:1]}",
                best,
                f"{fast:.2f}",
                optimum,
                f"{seconds:.1f}",
                excess,
            ),
            widths,
        )
    print(
        f"{proved} of {arguments.cases} proved; of these {equal} equal the optimum ({equal / max(proved, 1):.0%}); "
        f"the worst is {worst_slots} slot(s) above (a slot is the largest single cost)"
    )


def large(arguments: argparse.Namespace) -> None:
    widths = (8, 9, 9, 7, 9, 8, 8, 8, 8)
    show(("limit", "F:I:W", "latency", "dead", "seconds", "bound", "period", "ratio", "legal"), widths)
    pipelines, depth, micro_batches = arguments.shape or (64, 16, 64)
    servers = [Server(pipeline, stage) for pipeline in range(pipelines) for stage in range(depth)]
    rows = itertools.product((((1, 1, 1), 3), ((10, 12, 7), 60)), (2 * depth, depth), (0, 1), (0, 1, 2, 8))
    for (cost, optimizer), limit, latency, count in rows:
        failed = random.Random(arguments.seed + count).sample(servers, count)
        stages = (Stage(cost[0], cost[1], cost[2], optimizer, 0, 1, 0, limit),) * depth
        job = Job(pipelines, micro_batches, stages, (latency,) * (depth - 1))
        began = time.thread_time()
        plan = make_plan(job, failed, STAGGERED, effort(arguments))
        seconds = time.thread_time() - began
        legal = not check_plan(plan)
        costs = ":".join(map(str, cost))
        ratio = f"{plan.period / plan.bound:.4f}"
        show((limit, costs, latency, count, f"{seconds:.2f}", plan.bound, plan.period, ratio, legal), widths)


def lookup(arguments: argparse.Namespace) -> None:
    pipelines, depth, micro_batches = arguments.shape or (64, 16, 64)
    job = paper_job(2 * depth, 0, pipelines, depth, micro_batches)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catalogue.zip"
        make_catalogue(path, job, STAGGERED, 1, effort(arguments), "lowered", lambda *_: None)
        print(f"{pipelines * depth:,} servers, every single failure: {path.stat().st_size / 2**20:.1f} MiB")
        catalogue = Catalogue(path, job)
        looked, program = [], []
        for server in random.Random(arguments.seed).sample(job.servers(), min(20, pipelines * depth)):
            began = time.perf_counter()
            found = catalogue.look_up([server])
            looked.append(time.perf_counter() - began)
            began = time.perf_counter()
            found.program(Server((server.pipeline + 1) % pipelines, server.stage))
            program.append(time.perf_counter() - began)
        began = time.perf_counter()
        found.plan()
        whole = time.perf_counter() - began
    print(f"look-up, relabelled: median {statistics.median(looked) * 1e3:.1f} ms, worst {max(looked) * 1e3:.1f} ms")
    live = f"{pipelines * depth - 1:,}"
    print(f"one server's program: median {statistics.median(program) * 1e3:.2f} ms; all {live}: {whole:.2f} s")


def pays(arguments: argparse.Namespace) -> None:
    for line in rows_of_pays(arguments.pipelines, arguments.stages, arguments.micro_batches, arguments.moves):
        print(line, flush=True)


def rows_of_pays(all_pipelines: list[int], stages: int, all_micro_batches: list[int], moves: int) -> Iterator[str]:
    """The table, line by line; a column for each number of micro-batches per stage."""
    heads = " | ".join(f"{each / stages:g}" for each in all_micro_batches)
    yield f"| pipelines | micro-batches per stage: {heads} | drop the pipeline |"
    yield f"| --- |{' --- |' * (len(all_micro_batches) + 1)}"
    for pipelines in all_pipelines:
        cells = " | ".join(kept(pipelines, stages, each, moves) for each in all_micro_batches)
        yield f"| {pipelines} | {cells} | {1 - 1 / pipelines:.0%} |"


def kept(pipelines: int, stages: int, micro_batches: int, moves: int) -> str:
    """What remains of a job's throughput, against 1F1B with all servers."""
    stage = Stage(1, 1, 1, 0, 0, 1, 0, stages)
    job = Job(pipelines, micro_batches, (stage,) * stages, (0,) * (stages - 1))
    chosen = Effort((MaxMoves(moves),), f"{moves} moves")
    return f"{make_plan(job, [Server(1, stages // 2)], STAGGERED, chosen).throughput:.0%}"


SECTIONS = {"table": table, "small": small, "large": large, "lookup": lookup, "pays": pays}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--cases", type=int, default=60, help="random small jobs (default 60)")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds of the fast planner per plan (default 2)")
    parser.add_argument(
        "--proof", type=float, default=60.0, help="seconds of the exact solver per job of table and small (default 60)"
    )
    parser.add_argument(
        "--shape", type=sizes(3), metavar="DxPxM", help="pipelines x stages x micro-batches of large and lookup"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stages", type=int, default=8, help="this and what follows: of pays")
    parser.add_argument("--pipelines", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    parser.add_argument("--moves", type=int, default=2000)
    arguments = parser.parse_args()
    unknown = [section for section in arguments.sections if section not in SECTIONS]
    if unknown:
        parser.error(f"unknown section {unknown[0]!r}: choose from {', '.join(SECTIONS)}")
    for section in arguments.sections or SECTIONS:
        print(f"\n== {section}")
        SECTIONS[section](arguments)


if __name__ == "__main__":
    main()
