"""Planning from Python."""

import subprocess
import sys
from xml.etree import ElementTree

import msgspec
import pytest

import recycle
from recycle.api.planned import Planned
from recycle.errors import JobError, UserError
from recycle.plan.document import encode_plan

PAPER = {"pipelines": 3, "stages": 4, "micro_batches": 6, "optimizer": 3, "limit": 6}


def test_a_question_is_a_few_lines(tmp_path):
    job = recycle.Job(**PAPER)
    plan = recycle.make_plan(job, dead=["W1_2"], moves=5000)
    assert (plan.period, plan.bound, plan.throughput, plan.dead) == (30, 30, 1.0, ["W1_2"])
    assert plan.check() == []
    assert plan.explain().time.endswith("That is proven to be the least.")
    plan.save(tmp_path / "plan.json")
    again = recycle.load_plan(str(tmp_path / "plan.json"))
    assert encode_plan(again.plan) == encode_plan(plan.plan)


def test_a_plan_is_drawn_in_a_notebook():
    plan = recycle.make_plan(recycle.Job(**PAPER), moves=10)
    assert ElementTree.fromstring(plan._repr_svg_()).tag.endswith("svg")
    assert plan.html().lower().startswith("<!doctype html>")
    assert repr(plan) == f"<plan of job, dead: none, period {plan.period} slots, bound {plan.bound} slots>"


@pytest.mark.parametrize("cheap", [0, 1, 40])
def test_a_plan_with_a_very_cheap_stage_is_drawn(cheap):
    costs = [cheap, 10_000, 10_000, 10_000]
    keys = {"forward": costs, "input_gradient": costs, "weight_gradient": costs, "time_unit": "us"}
    plan = recycle.make_plan(recycle.Job(pipelines=2, stages=4, micro_batches=16, **keys), moves=1)
    assert ElementTree.fromstring(plan._repr_svg_()).tag.endswith("svg")


def test_what_cannot_be_drawn_is_text_in_a_notebook():
    plan = recycle.make_plan(recycle.Job(**PAPER), moves=10)
    turned = {server: tuple(reversed(program)) for server, program in plan.plan.programs.items()}
    stuck = Planned(msgspec.structs.replace(plan.plan, programs=turned))
    assert stuck._repr_svg_() is None
    assert "<plan of job" in repr(stuck)
    large = recycle.make_plan(recycle.Job(pipelines=16, stages=8, micro_batches=64), moves=1)
    assert large._repr_svg_() is None


def test_a_job_file_and_its_keys_give_the_same_job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text("pipelines = 3\nstages = 4\nmicro_batches = 6\n[costs]\noptimizer = 3\n[memory]\nlimit = 6\n")
    assert recycle.load_job(path) == recycle.load_job(str(path)) == recycle.Job(**PAPER)


def test_a_sweep_is_a_table():
    rows = recycle.sweep(recycle.Job(**PAPER), failures=range(3), budget="200ms", seed=3)
    assert [row["failures"] for row in rows] == [0, 1, 2]
    assert (rows[0]["of_before"], rows[0]["alive"], rows[0]["dead"]) == (1.0, 1.0, "")
    assert rows[2]["dead"].count("W") == 2
    assert set(rows[1]["dead"].split(", ")) < set(rows[2]["dead"].split(", "))
    assert all(row["period"] >= row["bound"] > 0 for row in rows)


def test_what_cannot_be_used_says_why():
    job = recycle.Job(**PAPER)
    with pytest.raises(JobError, match="speed"):
        recycle.Job(**PAPER, speed=3)
    with pytest.raises(JobError, match="this job can lose 8 servers"):
        recycle.sweep(job, failures=[9], budget="1ms")
    with pytest.raises(JobError, match="server 'x'"):
        recycle.make_plan(job, dead=["x"])
    with pytest.raises(UserError, match="no duration"):
        recycle.make_plan(job, budget="soon")
    with pytest.raises(AttributeError, match="no attribute 'plann'"):
        recycle.plann  # noqa: B018


def test_the_import_costs_nothing_and_planning_never_needs_torch():
    code = """
import sys, recycle
assert not {"ortools", "rich", "recycle.api.planned"} & sys.modules.keys()
plan = recycle.make_plan(recycle.Job(pipelines=2, stages=2, micro_batches=2), moves=10)
plan.svg()
assert not {"torch", "megatron", "numpy", "ortools"} & sys.modules.keys()
assert "make_plan" in dir(recycle)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
