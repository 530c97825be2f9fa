"""The table of Megatron's names: a changed one is found before training starts."""

import importlib
import subprocess
import sys
from functools import reduce

import pytest
from megatron import core

from harness.flag_runs import missing, needs_training
from recycle.megatron.flag.command.megatron_options import known_releases
from recycle.megatron.shared.release import (
    RELEASES,
    find_release,
    module_with,
    parameters_of,
    require_known_release,
    require_listed,
)
from recycle.runtime.errors import RunError

TRAINING = not missing

HOOKS = [
    each for each in require_listed(core.__version__).hooks if TRAINING or each.module.startswith("megatron.core.")
]


def name(hook):
    return hook.name


@pytest.mark.parametrize("hook", HOOKS, ids=name)
def test_every_name_has_the_signature_of_the_table(hook):
    assert parameters_of(hook) == hook.parameters


@needs_training
def test_this_release_is_known():
    assert require_known_release() == core.__version__


@needs_training
@pytest.mark.parametrize("hook", HOOKS, ids=name)
def test_a_changed_signature_is_an_error_with_a_remedy(hook, monkeypatch):
    def changed(one_more, *, thing):
        pass

    *path, last = hook.name.split(".")
    monkeypatch.setattr(reduce(getattr, path, importlib.import_module(hook.module)), last, changed)
    message = rf"{hook.module}.{hook.name} takes \(one_more, \*, thing\), .* take the release's own"
    with pytest.raises(RunError, match=message):
        require_known_release()


def test_a_name_that_is_not_there_is_an_error_with_a_remedy(monkeypatch):
    hook = HOOKS[0]
    monkeypatch.delattr(importlib.import_module(hook.module), hook.name)
    with pytest.raises(RunError, match=r"is not there .* install megatron-core 0.17.1"):
        parameters_of(hook)


def test_an_unknown_release_is_an_error_with_a_remedy(monkeypatch):
    monkeypatch.setattr(core, "__version__", "0.99.0")
    with pytest.raises(RunError, match=r"megatron-core is 0.99.0, .* knows 0.16.1, 0.17.1, .* and 0.19.2: install one"):
        require_known_release()


def test_the_commit_of_a_tree_is_no_part_of_its_release():
    assert require_listed("0.17.1+0123abc") == require_listed("0.17.1")


def script_beside(folder, numbers, prerelease=""):
    """A training script in a source tree of some release of Megatron's that cannot be imported here."""
    core = folder / "megatron" / "core"
    core.mkdir(parents=True)
    (core / "__init__.py").write_text("raise ImportError('this release needs something else')")
    lines = zip(("MAJOR", "MINOR", "PATCH"), numbers, strict=True)
    content = "".join(f"{name} = {value}\n" for name, value in lines) + f'PRE_RELEASE = "{prerelease}"\n'
    (core / "package_info.py").write_text(content)
    script = folder / "pretrain.py"
    script.write_text("import megatron.core")
    return script


@pytest.mark.parametrize(
    ("numbers", "prerelease", "found"), [((0, 20, 0), "", "0.20.0"), ((0, 17, 1), "rc0", "0.17.1rc0")]
)
def test_an_unknown_release_is_refused_before_it_is_imported(numbers, prerelease, found, tmp_path):
    script = script_beside(tmp_path, numbers, prerelease)
    command = [sys.executable, "-m", "recycle.megatron", script, "--pipeline-schedule", "recycle"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"recycle: megatron-core is {found}, and --pipeline-schedule recycle knows 0.16.1, 0.17.1,")


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_of_the_table_is_found_beside_a_script(release, tmp_path):
    assert find_release(script_beside(tmp_path, release.split("."))) == release


def test_the_doctor_knows_the_options_of_every_release_of_the_table():
    assert list(RELEASES) == known_releases()


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_has_what_is_looked_for_in_one_place(release, monkeypatch):
    hooks = {(each.module, each.name) for each in RELEASES[release].hooks}
    assert len(hooks) == len(RELEASES[release].hooks)
    names = [name for _, name in hooks]
    # What experts report is in a dictionary, or in what took its place.
    assert ("get_moe_metrics_tracker" in names) != ("get_moe_layer_wise_logging_tracker" in names)


@needs_training
def test_a_function_is_found_where_this_release_has_it():
    assert module_with("initialize_megatron").initialize_megatron
    assert module_with("no_such_function") is None
