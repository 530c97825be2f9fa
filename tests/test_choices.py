"""The files that a run is made of, and the plans made for it: what no server can run is refused before it begins."""

import pytest
from click.testing import CliRunner

from harness.examples import QUICK
from recycle.cli.run.choices import choose
from recycle.cli.verbs import group
from recycle.errors import PlanFileError
from recycle.job import Job
from recycle.jobfile import load_job
from recycle.plan.catalogue import Catalogue
from recycle.plan.document import save_plan
from recycle.plan.mode import Mode
from recycle.planner.catalogue import make_catalogue
from recycle.planner.make import make_plan


def job_of(**keys) -> Job:
    return load_job(None, {"pipelines": 2, "stages": 2, "micro_batches": 2, **keys})


def chosen(job, **files):
    return choose(job, (), 5, **({"plan": None, "faults": None, "catalogue": None} | files))


@pytest.mark.parametrize("form", ["lowered", "compute"])
def test_plans_without_transfers_are_refused(tmp_path, form):
    job, plan, catalogue = job_of(), tmp_path / "plan.json", tmp_path / "plans.zip"
    save_plan(make_plan(job, (), Mode(), QUICK, form), plan)
    make_catalogue(catalogue, job, Mode(), 1, QUICK, form, lambda *_: None)
    if form == "lowered":
        assert chosen(job, plan=plan, catalogue=catalogue).plan.form == form
        return
    with pytest.raises(PlanFileError, match=r"plan\.json: its form is 'compute'.*make the plan again"):
        chosen(job, plan=plan)
    with pytest.raises(PlanFileError, match=r"plans\.zip: its form is 'compute'.*make the catalogue again"):
        chosen(job, catalogue=catalogue)


def test_plans_for_failures_are_of_the_plans_job_whatever_else_the_command_line_says(tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr("recycle.cli.train.train_and_show", lambda run, *_: runs.append(run))
    job = job_of(name="another", forward=2)
    save_plan(make_plan(job, (), Mode(), QUICK, "lowered"), tmp_path / "plan.json")
    shape = ["-D", "2", "-P", "2", "-M", "2"]
    arguments = ["train", *shape, "--plan", str(tmp_path / "plan.json"), "-o", str(tmp_path / "run")]
    result = CliRunner().invoke(group, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (run,) = runs
    assert Catalogue(run.catalogue, run.plan.job).index.job == job
