"""Make schedules/: the worked example of the ReCycle paper in its four forms, as plan files.

Usage: python scripts/make_schedules.py [FOLDER]
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from recycle.job import Server
from recycle.jobfile import load_job
from recycle.plan.document import encode_plan
from recycle.plan.mode import Mode
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves

SCHEDULES = Path(__file__).resolve().parent.parent / "schedules"
DEAD = (Server(1, 2),)

# The limits are those under which the paper's own drawings are made: 1F1B's, and four activations.
FORMS: dict[str, tuple[tuple[Server, ...], Mode, dict[str, object]]] = {
    "1-fault-free": ((), Mode("fused", "global"), {"limit": [4, 3, 2, 1]}),
    "2-fused": (DEAD, Mode("fused", "global"), {"limit": [4, 3, 2, 1]}),
    "3-split": (DEAD, Mode("split", "global"), {"released_at_input_gradient": 0}),
    "4-staggered": (DEAD, Mode("split", "staggered"), {}),
}


def make_schedules() -> Iterator[tuple[str, bytes]]:
    """The name and content of every plan file; the same bytes on every machine."""
    for name, (failed, mode, changes) in FORMS.items():
        job = load_job(SCHEDULES / "paper.toml", {"name": f"paper, {name[2:]}", **changes})
        plan = make_plan(job, failed, mode, Effort((MaxMoves(200_000),), "200000 moves"))
        yield f"{name}.json", encode_plan(plan)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SCHEDULES
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in make_schedules():
        (folder / file).write_bytes(content)
        print(folder / file)
