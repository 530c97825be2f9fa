"""A Megatron training script under the flag, by a plan of the planner's also where all servers are alive.

There the flag takes Megatron's own order, whose backward pass is fused; this one is split where the layers can be.

Usage: python -m scripts.gpu_planned SCRIPT ARGUMENT ...
"""

import sys
from collections.abc import Iterable

from recycle.job import Job, Server
from recycle.megatron.__main__ import main
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan
from recycle.planner import source
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxSeconds


def searched(job: Job, dead: Iterable[Server], mode: Mode, seconds: float) -> Plan:
    """A plan that was searched for so many seconds, whoever is dead."""
    return make_plan(job, dead, mode, Effort((MaxSeconds(seconds),), f"{seconds:g} s"))


if __name__ == "__main__":
    source.megatron_plan = searched
    sys.exit(main(sys.argv[1:]))
