"""The source patches: they fit the released files, only add lines, and add the flag."""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from megatron.core import __version__

from harness.flag_runs import launch, make_dataset, needs_training, train

PATCHES = Path(__file__).parents[3] / "patches"
PATCH = PATCHES / f"megatron-core-{__version__}.patch"
SUM = re.compile(r"^([0-9a-f]{64})  (megatron/\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the installed megatron.training, patched."""
    folder = tmp_path_factory.mktemp("tree")
    (place,) = importlib.util.find_spec("megatron.training").submodule_search_locations
    shutil.copytree(place, folder / "megatron" / "training")
    subprocess.run(["git", "apply", "--unidiff-zero", PATCH], cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("patch", sorted(PATCHES.glob("*.patch")), ids=lambda path: path.stem)
def test_a_patch_only_adds_a_few_lines(patch):
    lines = patch.read_text().partition("\n--- ")[2].splitlines()
    kinds = [line[0] for line in lines[2:] if line[:3] not in ("---", "+++")]
    assert set(kinds) == {"@", "+"}
    assert kinds.count("+") < 30


@needs_training
def test_it_is_for_the_released_files():
    (place,) = importlib.util.find_spec("megatron.training").submodule_search_locations
    sums = SUM.findall(PATCH.read_text())
    assert len(sums) == 2
    for expected, name in sums:
        content = (Path(place).parents[1] / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == expected, f"{name} is another file than the patch is for"


@pytest.mark.long
@needs_training
@pytest.mark.timeout(1200)
def test_a_patched_tree_has_the_flag_and_trains_with_it_and_without(tree, tmp_path, monkeypatch):
    dataset = make_dataset(tmp_path / "text")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")]))
    script = Path(__file__).parents[3] / "harness" / "scripts" / "without_cuda.py"
    stock = train(dataset, start=(script,), launcher=launch, iterations=3)
    dead = ("--pipeline-schedule", "recycle", "--recycle-dead", "W0_1", "--recycle-budget", "1s")
    flagged = train(dataset, *dead, start=(script,), launcher=launch, iterations=3)
    assert f"recycle_dead {36 * '.'} W0_1" in flagged.output
    assert "pipeline_schedule ............................... stock" in stock.output
    assert sorted(flagged.trained) == [1, 2, 3]
    for number, (loss, _) in flagged.trained.items():
        assert float(loss) == pytest.approx(float(stock.trained[number][0]), rel=1e-6)
