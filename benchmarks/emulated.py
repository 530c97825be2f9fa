"""Run the plans in schedules/ with a process per server that sleeps its durations, and compare the wall clock.

Usage: python -m benchmarks.emulated [--slot-ms 20] [--iterations 10] [PLAN ...]

Sleeps of this machine must end on time for the figures to mean anything, so they are measured too, and a machine
whose sleeps end late by more than 0.3 ms on average gets no figures.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

from recycle.plan.document import load_plan
from recycle.plan.plan import Plan
from recycle.record.timeline import Timeline
from recycle.runtime.emulate.run import emulate

SCHEDULES = Path(__file__).resolve().parent.parent / "schedules"
MOST_OVERSLEEP = 0.0003
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("plans", nargs="*", type=Path, default=sorted(SCHEDULES.glob("*.json")))
    parser.add_argument("--slot-ms", type=float, default=20.0)
    parser.add_argument("--iterations", type=int, default=10)
    arguments = parser.parse_args()
    print(f"slot {arguments.slot_ms:g} ms, median of {arguments.iterations} iterations, {os.cpu_count()} cores")
    print(f"{'plan':<20} {'figure':<9} {'planned':>8} {'measured':>9} {'off by':>7} {'oversleep':>10} {'load':>6}")
    worst = 0.0
    for path in arguments.plans:
        what, planned, measured, oversleep = measure(load_plan(path), arguments.slot_ms / 1000, arguments.iterations)
        load = os.getloadavg()[0]
        if oversleep > MOST_OVERSLEEP:
            print(
                f"{path.stem}: sleeps end {oversleep * 1e3:.2f} ms late on average, and more than "
                f"{MOST_OVERSLEEP * 1e3:.1f} ms says more of this machine than of the plan (load {load:.1f}): "
                "run it again when less else is running",
                file=sys.stderr,
            )
            return 2
        deviation = measured / planned - 1
        worst = max(worst, abs(deviation))
        print(
            f"{path.stem:<20} {what:<9} {planned:>8} {measured:>9.2f} {deviation:>7.1%} "
            f"{oversleep * 1e3:>7.2f} ms {load:>6.2f}"
        )
    print(f"worst {worst:.1%}, and {MOST_DEVIATION:.0%} is allowed")
    return int(worst > MOST_DEVIATION)


if __name__ == "__main__":
    sys.exit(main())
