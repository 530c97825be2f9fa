"""A Megatron training script under the flag, also with one pipeline, where the flag leaves it to Megatron's schedule.

Usage: python -m scripts.gpu_planned fused|split SCRIPT ARGUMENT ...

``fused``: by Megatron's own order, as the flag has it where all servers are alive. ``split``: by a plan of the
planner's, whose backward pass is split where the layers can be.
"""

import sys
from collections.abc import Iterable

from recycle.job import Job, Server
from recycle.megatron.__main__ import main
from recycle.megatron.flag.start import protection
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan
from recycle.planner import source
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxSeconds


def searched(job: Job, dead: Iterable[Server], mode: Mode, seconds: float) -> Plan:
    """A plan that was searched for so many seconds, whoever is dead."""
    return make_plan(job, dead, mode, Effort((MaxSeconds(seconds),), f"{seconds:g} s"))


if __name__ == "__main__":
    protection.unprotected = lambda shape: ""  # type: ignore[attr-defined]  # it is imported there
    if sys.argv[1] == "split":
        source.megatron_plan = searched
    sys.exit(main(sys.argv[2:]))
