from pathlib import Path

import msgspec
import pytest

from recycle.errors import PlanFileError
from recycle.job import Server
from recycle.plan.document import load_plan
from recycle.runtime.errors import RunError
from recycle.runtime.execute.worker import require_program

STAGGERED = load_plan(Path(__file__).resolve().parents[3] / "schedules" / "4-staggered.json")


class Unsplit:
    cannot_split = "its layers are checkpointed"


class Split:
    cannot_split = ""


def test_a_plan_that_cannot_run_says_why():
    with pytest.raises(PlanFileError, match="which has no transfers: make the plan again"):
        require_program(msgspec.structs.replace(STAGGERED, form="compute"), Server(0, 0), [Split()])
    with pytest.raises(RunError, match="W1_2 has no instructions"):
        require_program(STAGGERED, Server(1, 2), [Split()])
    with pytest.raises(RunError, match=r"0I0\.0 computes one half .*: its layers are checkpointed; make the"):
        require_program(STAGGERED, Server(0, 0), [Unsplit()])
    assert require_program(STAGGERED, Server(0, 0), [Split()]) == STAGGERED.programs[Server(0, 0)]
