"""Run the plans in schedules/ with a process per server that sleeps its durations, and compare the wall clock.

Usage: python -m benchmarks.emulated [--slot-ms 20] [--iterations 10] [PLAN ...]

Sleeps of this machine must end on time for the figures to mean anything, so they are measured too, and a machine
whose sleeps end late by more than 0.3 ms on average, and by more than 1.5% of a slot, gets no figures.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

from recycle.plan.document import load_plan
from recycle.plan.plan import Plan
from recycle.record.timeline import Timeline
from recycle.runtime.emulate.run import emulate

SCHEDULES = Path(__file__).resolve().parent.parent / "schedules"
MOST_OVERSLEEP, SHARE_OF_SLOT = 0.0003, 0.015
MOST_DEVIATION = 0.03


def makespans(timeline: Timeline) -> list[float]:
    """Per iteration, from the first compute instruction's start to the last one's end."""
    bounds: dict[int, list[float]] = {}
    for span in timeline.spans:
        if span.instruction.op.is_compute:
            bounds.setdefault(span.iteration, []).extend((span.start, span.end))
    return [max(times) - min(times) for _, times in sorted(bounds.items())]


def periods(timeline: Timeline) -> list[float]:
    """From each iteration's end on a server to its next, for the servers of the last stage."""
    last = max(span.server.stage for span in timeline.spans)
    ends: dict[object, dict[int, float]] = {}
    for span in timeline.spans:
        if span.server.stage == last and span.instruction.op.is_update:
            ends.setdefault(span.server, {})[span.iteration] = span.end
    return [
        later - earlier
        for times in ends.values()
        for earlier, later in zip(sorted(times.values()), sorted(times.values())[1:], strict=False)
    ]


def measure(plan: Plan, slot: float, iterations: int) -> tuple[str, int, float, float]:
    """What is compared, its planned and its measured value in slots, and the mean oversleep in seconds."""
    run = emulate(plan, slot, iterations)
    staggered = plan.mode.optimizer == "staggered"
    what, planned, times = (
        ("period", plan.period, periods(run.timeline))
        if staggered
        else ("makespan", plan.makespan, makespans(run.timeline))
    )
    return what, planned, statistics.median(times) / (slot * 1e6), run.oversleep


def compare(plans: Iterable[tuple[str, Plan]], slot: float, iterations: int, beside: Plan | None = None) -> int:
    """Emulate some plans, and print a line for each.

    Args:
        plans: by what they are called.
        slot: seconds.
        iterations: of each plan.
        beside: emulated before each of them, to tell what this machine does to any plan; its part of how far one is off
            is printed as well.

    Returns:
        The exit status: 1 where a plan is off by more than is allowed, 2 where this machine gives no figures.
    """
    print(f"slot {slot * 1000:g} ms, median of {iterations} iterations, {os.cpu_count()} cores")
    head = f"{'plan':<28} {'figure':<9} {'planned':>8} {'measured':>9} {'off by':>7} {'oversleep':>10} {'load':>6}"
    print(head if beside is None else f"{head} {'beside':>7}")
    worst = 0.0
    for name, plan in plans:
        usual = "" if beside is None else f" {_deviation(beside, slot, iterations):>7.1%}"
        what, planned, measured, oversleep = measure(plan, slot, iterations)
        load = os.getloadavg()[0]
        most = max(MOST_OVERSLEEP, SHARE_OF_SLOT * slot)
        if oversleep > most:
            print(
                f"{name}: sleeps end {oversleep * 1e3:.2f} ms late on average, and more than "
                f"{most * 1e3:.1f} ms says more of this machine than of the plan (load {load:.1f}): "
                "run it again when less else is running",
                file=sys.stderr,
            )
            return 2
        deviation = measured / planned - 1
        worst = max(worst, abs(deviation))
        print(
            f"{name:<28} {what:<9} {planned:>8} {measured:>9.2f} {deviation:>7.1%} "
            f"{oversleep * 1e3:>7.2f} ms {load:>6.2f}{usual}",
            flush=True,
        )
    print(f"worst {worst:.1%}, and {MOST_DEVIATION:.0%} is allowed")
    return int(worst > MOST_DEVIATION)


def _deviation(plan: Plan, slot: float, iterations: int) -> float:
    _, planned, measured, _ = measure(plan, slot, iterations)
    return measured / planned - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("plans", nargs="*", type=Path, default=sorted(SCHEDULES.glob("*.json")))
    parser.add_argument("--slot-ms", type=float, default=20.0)
    parser.add_argument("--iterations", type=int, default=10)
    arguments = parser.parse_args()
    plans = ((path.stem, load_plan(path)) for path in arguments.plans)
    return compare(plans, arguments.slot_ms / 1000, arguments.iterations)


if __name__ == "__main__":
    sys.exit(main())
