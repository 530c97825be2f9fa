"""Run plans of other placements with a process per server that sleeps its durations: do they take what plans say?

Usage: python -m benchmarks.moved [--micro-batches 12] [--slot-ms 20] [--placement dead-moved ...]

The first ones are what a run of 3 x 4 servers and 8 layers comes to when a server dies, or is half as fast as its
peers: before the layers move, and after it, as the run's own decision has them. The others are servers of two chunks
each and pipelines of unequal depth. As in ``benchmarks.emulated``, a machine whose sleeps end late gets no figures; how
far the run is off in which nothing has happened, right before each, is printed beside it.
"""

import argparse
import sys
from collections.abc import Callable, Mapping

from benchmarks.emulated import compare
from harness.examples import QUICK, placed_job, uneven_job
from recycle.holding import with_own_layout
from recycle.job import Job, Server
from recycle.placing.decision import OF_A_CLUSTER
from recycle.plan.mode import Mode
from recycle.plan.moves import Seen, Situation
from recycle.plan.plan import Plan
from recycle.planner.make import make_plan
from recycle.planner.moving import ChunkMover

DEAD, SLOW = Server(1, 2), Server(1, 1)
HALF = 0.5


def home(micro_batches: int) -> Job:
    """Three pipelines of four servers with two layers each, and memory for more."""
    return with_own_layout(
        placed_job("consecutive:2", pipelines=3, servers=4, micro_batches=micro_batches, limit=2 * micro_batches)
    )


def planned(job: Job, *dead: Server) -> Plan:
    """A plan as a run makes it."""
    return make_plan(job, dead, Mode(), QUICK)


def moved(job: Job, *dead: Server, slow: bool = False) -> Plan:
    """What a run goes on with after its decision about a placement."""
    shares = {each: HALF if each == SLOW else 1.0 for each in job.servers()} if slow else {}
    mover = ChunkMover(planned(job), OF_A_CLUSTER, by_speed=slow)
    situation = Situation(planned(job, *dead), job, 1.0, 10**6, Seen(), shares)
    # Speeds are believed when they are seen twice.
    proposal = (mover.weigh(situation) if slow else None) or mover.weigh(situation)
    assert proposal is not None, "there is something to decide"
    assert proposal.plan is not None, proposal.line
    return proposal.plan


PLANS: Mapping[str, Callable[[int], Plan]] = {
    "whole": lambda count: planned(home(count)),
    "dead": lambda count: planned(home(count), DEAD),
    "dead-moved": lambda count: moved(home(count), DEAD),
    "slow-moved": lambda count: moved(home(count), slow=True),
    "dead-slow-moved": lambda count: moved(home(count), DEAD, slow=True),
    "v-shaped": lambda count: planned(placed_job("v-shaped", pipelines=3, servers=3, micro_batches=count)),
    "unequal": lambda _: planned(uneven_job()),
    "unequal-slow": lambda _: planned(uneven_job(slow=50)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--placement", nargs="+", choices=[*PLANS], default=[*PLANS])
    parser.add_argument("--micro-batches", type=int, default=12, help="of a pipeline at the start")
    parser.add_argument("--slot-ms", type=float, default=20.0)
    parser.add_argument("--iterations", type=int, default=10)
    arguments = parser.parse_args()
    plans = ((name, PLANS[name](arguments.micro_batches)) for name in arguments.placement)
    return compare(plans, arguments.slot_ms / 1000, arguments.iterations, planned(home(arguments.micro_batches)))


if __name__ == "__main__":
    sys.exit(main())
