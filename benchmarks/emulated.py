"""Plans run by a process per server that sleeps its durations: does the wall clock say what plans say?

Usage: python -m benchmarks.emulated placements [--micro-batches 12] [--slot-ms 20] [--placement dead-moved ...]
       python -m benchmarks.emulated stagger [--slot-ms 20] [--iterations 20] [--recordings FOLDER]

Sleeps of this machine must end on time for the figures to mean anything, so they are measured too, and a machine
whose sleeps end late by more than 0.3 ms on average, and by more than 1.5% of a slot, gets no figures.

``placements``: what a run of 3 x 4 servers and 8 layers comes to when a server dies: before the layers move, and after
it, as the run's own decision has them; servers of two chunks each, and pipelines of unequal depth. How far the run is
off in which nothing has happened, right before each, is printed beside it.

``stagger``: 3 x 4 x 6 with W1_2 dead, and an optimizer of 3 slots. Staggered, the period must be that of the
fault-free job with a global optimizer, 30 slots. Where norms never exceed their limit, no server may wait for one;
where they always do, the period must be that of the global optimizer within 2%. The recordings are for ``recycle
show``.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.shared import run_part
from harness.emulated_run import Emulation, emulate
from harness.examples import QUICK, paper_job, placed_job, uneven_job
from harness.recordings import save_recording
from recycle.holding import with_own_layout
from recycle.job import Job, Server
from recycle.placing.decision import OF_A_CLUSTER
from recycle.plan.mode import Mode
from recycle.plan.moves import Situation
from recycle.plan.plan import Plan
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves
from recycle.planner.moving import ChunkMover
from recycle.record.timeline import Timeline

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


DEAD = Server(1, 2)


def home(micro_batches: int) -> Job:
    """Three pipelines of four servers with two layers each, and memory for more."""
    return with_own_layout(
        placed_job("consecutive:2", pipelines=3, servers=4, micro_batches=micro_batches, limit=2 * micro_batches)
    )


def planned(job: Job, *dead: Server) -> Plan:
    """A plan as a run makes it."""
    return make_plan(job, dead, Mode(), QUICK)


def moved(job: Job, *dead: Server) -> Plan:
    """What a run goes on with after its decision about a placement."""
    mover = ChunkMover(planned(job), OF_A_CLUSTER)
    proposal = mover.weigh(Situation(planned(job, *dead), job, 1.0, 10**6))
    assert proposal is not None, "there is something to decide"
    assert proposal.plan is not None, proposal.line
    return proposal.plan


PLANS: Mapping[str, Callable[[int], Plan]] = {
    "whole": lambda count: planned(home(count)),
    "dead": lambda count: planned(home(count), DEAD),
    "dead-moved": lambda count: moved(home(count), DEAD),
    "v-shaped": lambda count: planned(placed_job("v-shaped", pipelines=3, servers=3, micro_batches=count)),
    "unequal": lambda _: planned(uneven_job()),
    "unequal-slow": lambda _: planned(uneven_job(slow=50)),
}


def placements() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--placement", nargs="+", choices=[*PLANS], default=[*PLANS])
    parser.add_argument("--micro-batches", type=int, default=12, help="of a pipeline at the start")
    parser.add_argument("--slot-ms", type=float, default=20.0)
    parser.add_argument("--iterations", type=int, default=10)
    arguments = parser.parse_args()
    plans = ((name, PLANS[name](arguments.micro_batches)) for name in arguments.placement)
    return compare(plans, arguments.slot_ms / 1000, arguments.iterations, planned(home(arguments.micro_batches)))


EXPECTED, ALLOWED, MOST_LOSS = 30, 0.03, 0.02
ROW = "{:<34} {:>8} {:>9} {:>6} {:>6} {:>6} {:>10} {:>5}"
EFFORT = Effort((MaxMoves(20_000),), "20000 moves")
JOB = paper_job()


class Case(NamedTuple):
    """One line of the table: what is run, and how."""

    name: str
    plan: Plan
    norm: Callable[[int], float] | None = None


class Measured(NamedTuple):
    """What a case showed: the period in slots."""

    period: float
    run: Emulation


def measure_case(case: Case, slot: float, iterations: int) -> Measured:
    run = emulate(case.plan, slot, iterations, 2, norm=case.norm)
    period = statistics.mean(periods(run.timeline)) / (slot * 1e6)
    past = run.reports[0].speculation
    guesses = (past.right, past.wrong, past.waits) if past else ("-",) * 3
    late = f"{run.oversleep * 1e3:.2f} ms"
    print(
        ROW.format(case.name, case.plan.period, f"{period:.2f}", *guesses, late, f"{os.getloadavg()[0]:.1f}"),
        flush=True,
    )
    return Measured(period, run)


def stagger() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--slot-ms", type=float, default=20.0)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--recordings", type=Path, help="where to write what was measured, a file per case")
    arguments = parser.parse_args()
    slot, iterations = arguments.slot_ms / 1000, arguments.iterations
    failed = (Server(1, 2),)
    staggered, barrier = (make_plan(JOB, failed, Mode(optimizer=each), EFFORT) for each in ("staggered", "global"))
    whole = make_plan(JOB, (), Mode("fused", "global"), EFFORT)
    print(f"slot {arguments.slot_ms:g} ms, mean of {iterations} iterations, {os.cpu_count()} cores, W1_2 dead")
    print(ROW.format("case", "planned", "measured", "right", "wrong", "waits", "oversleep", "load"))
    cases = (
        Case("fault-free, global", whole),
        Case("global", barrier),
        Case("global, each step clips", barrier, lambda _: 2.0),
        Case("staggered", staggered),
        Case("staggered, nothing clips", staggered, lambda _: 0.5),
        Case("staggered, one step in ten clips", staggered, lambda step: 2.0 if step % 10 == 5 else 0.5),
        Case("staggered, each step clips", staggered, lambda _: 2.0),
    )
    found = [measure_case(case, slot, iterations) for case in cases]
    if arguments.recordings is not None:
        arguments.recordings.mkdir(parents=True, exist_ok=True)
        for case, each in zip(cases, found, strict=True):
            save_recording(
                each.run.timeline, arguments.recordings / f"{case.name.replace(',', '').replace(' ', '-')}.jsonl"
            )
    if max(each.run.oversleep for each in found) > MOST_OVERSLEEP:
        print("sleeps end late on this machine: run it again when less else is running", file=sys.stderr)
        return 2
    _, _, synchronous, plain, guessed, _, waited = found
    past = guessed.run.reports[0].speculation
    assert past is not None
    off = max(abs(each.period / EXPECTED - 1) for each in (plain, guessed))
    loss = waited.period / synchronous.period - 1
    print(f"staggered: off by {off:.1%} from {EXPECTED} slots, and {ALLOWED:.0%} is allowed")
    print(f"nothing clips: {past.waits} waits, and none is allowed")
    print(f"each step clips: {loss:.1%} over the global optimizer, and {MOST_LOSS:.0%} is allowed")
    return int(off > ALLOWED or past.waits > 0 or loss > MOST_LOSS)


if __name__ == "__main__":
    sys.exit(run_part(__doc__, {"placements": placements, "stagger": stagger}))
