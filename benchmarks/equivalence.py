"""Train the same GPT by plans and by Megatron's stock 1F1B, and compare losses and final parameters.

Usage: python -m benchmarks.equivalence [stock variants failures] [--iterations 20] [--quick]

Without failures a fused plan must give the stock schedule's losses to the bit. With every single server dead, and every
pair of servers in different stages, the loss of every iteration must be that of the fault-free run within 1e-5, and all
peers of a stage must end with the same parameters to the bit; so must they with dropout, tied embeddings, bf16 with
main parameters in fp32, tensor parallelism and a loss per token. ``--quick`` takes a sample of the failures. Each of
the three comparisons can be made alone.
"""

import argparse
import itertools
import sys
import time

from harness.gpt_runs import JOB, OPTIONS, PER_TOKEN, VARIANTS, mean_losses, train_by_plan, train_by_stock
from recycle.job import Job, Server, Stage
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves

TOLERANCE = 1e-5
SECTIONS = ("stock", "variants", "failures")


def job(pipelines: int, stages: int, micro_batches: int) -> Job:
    return Job(
        pipelines,
        micro_batches,
        (Stage(2, 2, 1, 1, 0, 1, 0, 2 * stages),) * stages,
        (0,) * (stages - 1),
    )


def plan(of: Job, mode: Mode, failed: tuple[Server, ...] = ()) -> Plan:
    return make_plan(of, failed, mode, Effort((MaxMoves(500),), "500 moves"))


def deviation(losses: list[float], expected: list[float]) -> float:
    return max(abs(one / other - 1) for one, other in zip(losses, expected, strict=True))


def against_stock(pipelines: int, stages: int, iterations: int) -> bool:
    of = job(pipelines, stages, 4)
    stock = mean_losses(train_by_stock(of, iterations), iterations)
    good = True
    for mode in (Mode("fused", "global"), Mode("split", "staggered")):
        losses = mean_losses(train_by_plan(plan(of, mode), iterations), iterations)
        off = deviation(losses, stock)
        good &= off == 0 if mode.backward == "fused" else off <= 1e-6
        print(f"PP {stages} x DP {pipelines}, {mode.backward:<5} against stock: {off:.1e}", flush=True)
    return good


def with_failures(iterations: int, quick: bool) -> bool:
    of = job(3, 4, 4)
    expected = mean_losses(train_by_plan(plan(of, Mode()), iterations), iterations)
    singles = [(server,) for server in of.servers()]
    pairs = [pair for pair in itertools.combinations(of.servers(), 2) if pair[0].stage != pair[1].stage]
    cases = [*singles[:4], *pairs[::18]] if quick else [*singles, *pairs]
    worst, equal = 0.0, 0
    began = time.monotonic()
    for number, failed in enumerate(cases, 1):
        results = train_by_plan(plan(of, Mode(), failed), iterations)
        off = deviation(mean_losses(results, iterations), expected)
        same = all(
            result.parameters == other.parameters
            for server, result in results.items()
            for peer, other in results.items()
            if peer.stage == server.stage
        )
        worst, equal = max(worst, off), equal + same
        if off > TOLERANCE or not same:
            print(f"{' '.join(map(str, failed))}: off by {off:.1e}, peers {'agree' if same else 'DIFFER'}", flush=True)
        if number % 10 == 0 or number == len(cases):
            print(
                f"PP 4 x DP 3: {number} of {len(cases)} failures, worst {worst:.1e}, peers agree in {equal} "
                f"({time.monotonic() - began:.0f} s)",
                flush=True,
            )
    return worst <= TOLERANCE and equal == len(cases)


def with_variants(iterations: int) -> bool:
    """Dropout, bf16, tensor parallelism and a loss per token, each with a dead server, in the place of a schedule."""
    good = True
    for name, variant in {**VARIANTS, "loss per token": PER_TOKEN}.items():
        whole = train_by_stock(JOB, iterations, plan=plan(JOB, Mode()), **variant)
        degraded = train_by_stock(JOB, iterations, plan=plan(JOB, Mode(), (Server(0, 1),)), **variant)
        off = deviation(mean_losses(degraded, iterations), mean_losses(whole, iterations))
        first, *others = [result for server, result in degraded.items() if server.stage == 0]
        same = all(other.parameters == first.parameters for other in others)
        good &= off <= TOLERANCE and same
        agree = "agree" if same else "DIFFER"
        print(f"PP 2 x DP 2, W0_1 dead, {name}: {off:.1e} from fault-free, peers {agree}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)}; all if none is named")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    sections = arguments.sections or SECTIONS
    if unknown := set(sections) - set(SECTIONS):
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(SECTIONS)}")
    print(f"{OPTIONS.layers} layers of {OPTIONS.hidden}, {arguments.iterations} iterations")
    good = True
    if "stock" in sections:
        good &= against_stock(2, 2, arguments.iterations)
        good &= against_stock(2, 4, arguments.iterations)
    if "variants" in sections:
        good &= with_variants(arguments.iterations)
    if "failures" in sections:
        good &= with_failures(arguments.iterations, arguments.quick)
    print("all within what is allowed" if good else "NOT within what is allowed")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
