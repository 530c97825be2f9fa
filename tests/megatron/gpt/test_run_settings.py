"""A run's file holds all that a process needs that joins later, and nothing else."""

from pathlib import Path

import msgspec
import pytest

from harness.examples import QUICK, paper_job
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.run_settings import NOT_SAVED, Run
from recycle.placing.decision import OF_A_CLUSTER
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.runtime.errors import RunError
from recycle.runtime.step.checkpoint import require_same_settings
from recycle.state.redundancy import Redundancy


@pytest.fixture
def run(tmp_path):
    return Run(
        make_plan(paper_job(), (), Mode(), QUICK),
        ModelOptions(),
        5,
        tmp_path,
        text=Path("/text"),
        redundancy=Redundancy.parse("copies=1"),
        outlook=OF_A_CLUSTER,
    )


def test_what_is_saved_is_read(run):
    run.save()
    assert Run.read(run.folder) == run


@pytest.mark.parametrize("name", ["text", "catalogue", "resume_from"])
def test_its_files_are_found_from_another_folder(run, tmp_path, monkeypatch, name):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    for given, kept in ((Path("given"), "../given"), (Path("run/plans.zip"), "plans.zip")):
        here = msgspec.structs.replace(run, folder=Path("run"), **{name: given})
        here.folder.mkdir(exist_ok=True)
        here.save()
        monkeypatch.chdir("elsewhere")
        found = getattr(Run.read(Path("../run")), name)
        assert found.resolve() == (tmp_path / "run" / kept).resolve()
        monkeypatch.chdir("..")


@pytest.mark.parametrize("name", sorted({*Run.__struct_fields__} - {*NOT_SAVED}))
def test_a_file_that_lacks_a_setting_is_of_another_release(run, name):
    run.save()
    path = run.folder / "run.json"
    fields = msgspec.json.decode(path.read_bytes())
    value = fields.pop(name)
    for wrong, said in ((fields, "missing required"), ({**fields, name: value, "speed": 1}, "unknown field `speed`")):
        path.write_bytes(msgspec.json.encode(wrong))
        with pytest.raises(RunError, match=f"no run of this release: .*{said}"):
            Run.read(run.folder)


def test_no_run_goes_on_from_half_precision(run):
    require_same_settings("a checkpoint", run.settings, run.settings)
    with pytest.raises(
        RunError, match=r"^a checkpoint: its fp16 is True, and this run's is False: .* a new run in anoth"
    ):
        require_same_settings("a checkpoint", run.settings | {"fp16": True}, run.settings)
