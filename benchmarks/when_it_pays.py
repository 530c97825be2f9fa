"""What one dead server costs by re-routing, over micro-batches and pipelines: the table "When it pays" of README.

Usage: python -m benchmarks.when_it_pays [--stages 8] [--pipelines 2 4 8 16] [--micro-batches 8 16 32 64 128]
       [--moves 2000]

F, I and W take a slot each and the optimizer none. One server of a middle stage is dead. Plans have the memory that
1F1B's first stage has, on every server. The same moves and the same seed give the same table on every machine.
"""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import recycle


class Cost(NamedTuple):
    """One dead server of a job, as shares of what the job did before.

    Attributes:
        of_1f1b: against 1F1B with all servers, which Megatron runs.
        of_best: against the best plan that was found with all servers.
    """

    of_1f1b: float
    of_best: float


def cost_of(pipelines: int, stages: int, micro_batches: int, moves: int) -> Cost:
    """What remains of a job's throughput when a server of its middle stage is dead."""
    job = recycle.Job(pipelines=pipelines, stages=stages, micro_batches=micro_batches)
    whole = recycle.make_plan(job, moves=moves)
    around = recycle.make_plan(job, dead=[f"W1_{stages // 2}"], moves=moves)
    return Cost(around.throughput, whole.period / around.period)


def rows(all_pipelines: list[int], stages: int, all_micro_batches: list[int], moves: int) -> Iterator[str]:
    """The table, line by line; a column for each number of micro-batches per stage."""
    heads = " | ".join(f"{each / stages:g}" for each in all_micro_batches)
    yield f"| pipelines | {heads} | drop it |"
    yield f"| --- |{' --- |' * (len(all_micro_batches) + 1)}"
    for pipelines in all_pipelines:
        costs = [cost_of(pipelines, stages, each, moves) for each in all_micro_batches]
        cells = " | ".join(f"{each.of_1f1b:.0%} ({each.of_best:.0%})" for each in costs)
        yield f"| {pipelines} | {cells} | {1 - 1 / pipelines:.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--pipelines", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    parser.add_argument("--moves", type=int, default=2000)
    given = parser.parse_args()
    for line in rows(given.pipelines, given.stages, given.micro_batches, given.moves):
        print(line, flush=True)


if __name__ == "__main__":
    main()
