"""The plan files under schedules/ are what the planner makes, and say what the paper's example says."""

import importlib.util
from pathlib import Path

import pytest

from recycle.plan.checker import check_plan
from recycle.plan.document import load_plan

ROOT = Path(__file__).parent.parent
NAMES = ("1-fault-free", "2-fused", "3-split", "4-staggered")


def test_the_files_are_what_the_script_makes():
    spec = importlib.util.spec_from_file_location("make_schedules", ROOT / "scripts" / "make_schedules.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    made = dict(script.make_schedules())
    assert sorted(made) == [f"{name}.json" for name in NAMES]
    for name, content in made.items():
        path = ROOT / "schedules" / name
        assert path.read_bytes() == content, f"{path} is out of date; run python scripts/make_schedules.py"


@pytest.mark.parametrize(
    ("name", "makespan", "period"), list(zip(NAMES, (27, 36, 29, 29), (30, 39, 32, 30), strict=True))
)
def test_the_four_forms_have_the_papers_figures(name, makespan, period):
    plan = load_plan(ROOT / "schedules" / f"{name}.json")
    assert check_plan(plan) == ()
    assert (plan.makespan, plan.period, plan.bound) == (makespan, period, period)


@pytest.mark.parametrize("name", NAMES)
def test_their_programs_read_as_before(name, golden):
    plan = load_plan(ROOT / "schedules" / f"{name}.json")
    rows = [f"{server} {' '.join(map(str, program))}" for server, program in sorted(plan.programs.items())]
    golden(f"schedules/{name}.txt", "\n".join(rows) + "\n")
