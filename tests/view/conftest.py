from pathlib import Path

import pytest

from recycle.plan.document import load_plan

SCHEDULES = Path(__file__).parent.parent.parent / "schedules"
WORKED = ("1-fault-free", "2-fused", "3-split", "4-staggered")


@pytest.fixture(params=WORKED)
def worked(request):
    """Each of the four forms of the worked example: its name and its plan."""
    return request.param, load_plan(SCHEDULES / f"{request.param}.json")


@pytest.fixture
def fused():
    return load_plan(SCHEDULES / "2-fused.json")


@pytest.fixture
def staggered():
    return load_plan(SCHEDULES / "4-staggered.json")
