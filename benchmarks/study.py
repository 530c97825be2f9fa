"""What studies show: a year of 400 servers timed, the example's plots, and simulated against emulated.

Usage: python -m benchmarks.study year [--pipelines 50]
       python -m benchmarks.study figures [--seeds 3] [-o docs/images]
"""

import argparse
import time
from pathlib import Path

from benchmarks.reproduce.retention import example_job
from recycle.faults.outages import load_outages
from recycle.files import write_whole
from recycle.job import Job, Stage
from recycle.study.bill import Bill
from recycle.study.compare import StudySetting, compare, retention, sampled
from recycle.study.constants import TYPICAL
from recycle.study.failures import FailureHistory
from recycle.study.plots import bucket_bars, lost_hours, over_time, retention_lines
from recycle.study.rates import Ground, Rates
from recycle.study.registry import ALL, make_policy
from recycle.study.simulator import simulate

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"


def setting(job: Job, trace: str, seeds: int, policies: tuple[str, ...] = ALL) -> StudySetting:
    history = FailureHistory.recorded(load_outages(trace))
    failures = history.failures_per_second(job.pipelines * job.depth)
    return StudySetting(Ground(job, 10.0, 8 * job.depth, failures), history, policies, seeds)


def year(pipelines: int) -> None:
    stage = Stage(
        forward=1,
        input_gradient=1,
        weight_gradient=1,
        optimizer=3,
        reduction=0,
        held=1,
        released_at_input_gradient=0,
        limit=10,
    )
    whole = setting(
        Job(pipelines, 16, (stage,) * 8, (0,) * 7, name=f"{8 * pipelines} servers"), "language-model-cluster", 1
    )
    outages, job = sampled(whole, 0), whole.ground.job
    rates = Rates(job, whole.ground.layers)
    for what in ("with plans to be made", "once plans are there"):
        start = time.process_time()
        for name in ALL:
            simulate(make_policy(name, whole.ground, rates, TYPICAL), job.pipelines, job.depth, outages)
        print(
            f"{len(ALL)} policies over {outages.seconds / 86_400:g} days: {time.process_time() - start:.1f} s, {what}"
        )


def figures(seeds: int, folder: Path) -> None:
    example = setting(example_job(6), "shared-gpus", seeds)
    comparisons, curves = compare(example), retention(example)
    for name, picture in {
        "study-time": over_time(comparisons),
        "study-buckets": bucket_bars(comparisons),
        "study-retention": retention_lines(curves),
        "study-cost": lost_hours(comparisons, Bill()),
    }.items():
        write_whole(folder / f"{name}.svg", picture.encode())
        print(folder / f"{name}.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    what = parser.add_subparsers(dest="what", required=True)
    years = what.add_parser("year")
    years.add_argument("--pipelines", type=int, default=50, help="of 8 servers")
    drawn = what.add_parser("figures")
    drawn.add_argument("--seeds", type=int, default=3)
    drawn.add_argument("-o", "--output", type=Path, default=IMAGES, help="the folder of the plots")
    arguments = parser.parse_args()
    if arguments.what == "year":
        year(arguments.pipelines)
    else:
        figures(arguments.seeds, arguments.output)


if __name__ == "__main__":
    main()
