"""The table of Megatron's names: a changed one is found before training starts."""

import importlib
import subprocess
import sys
from functools import reduce

import pytest
from megatron import core

from harness.flag_runs import missing, needs_training
from recycle.megatron.shared.release import (
    EXECUTION,
    RELEASES,
    TRAINER,
    parameters_of,
    require_known_release,
    require_listed_release,
)
from recycle.runtime.errors import RunError

TRAINING = not missing

HOOKS = EXECUTION + (TRAINER if TRAINING else ())


@pytest.fixture(autouse=True)
def without_cuda():
    """What lets megatron.training be imported here; the functions of the table stay Megatron's own."""
    if TRAINING:
        from recycle.megatron.flag.cpu_training import stand_in_for_triton

        stand_in_for_triton()


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
    with pytest.raises(RunError, match=r"megatron-core is 0.99.0, .* knows 0.16.1 and 0.17.1: install one of these"):
        require_known_release()


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


def test_an_unknown_release_is_refused_before_it_is_imported(tmp_path):
    script = script_beside(tmp_path, (0, 19, 2))
    command = [sys.executable, "-m", "recycle.megatron", script, "--pipeline-schedule", "recycle"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("recycle: megatron-core is 0.19.2, and --pipeline-schedule recycle knows 0.16.1 and 0.17.1:")


def test_a_release_before_its_release_is_unknown(tmp_path):
    with pytest.raises(RunError, match=r"megatron-core is 0.17.1rc0, "):
        require_listed_release(script_beside(tmp_path, (0, 17, 1), "rc0"))


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_of_the_table_is_let_through(release, tmp_path):
    require_listed_release(script_beside(tmp_path, release.split(".")))


def test_both_releases_are_in_the_table():
    assert set(RELEASES) == {"0.16.1", "0.17.1"}
