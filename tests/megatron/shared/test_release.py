"""The table of Megatron's names: a changed one is found before training starts."""

import importlib
from functools import reduce

import pytest
from megatron import core

from harness.flag_runs import missing, needs_training
from recycle.megatron.shared.release import EXECUTION, RELEASES, TRAINER, parameters_of, require_known_release
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


def test_both_releases_are_in_the_table():
    assert set(RELEASES) == {"0.16.1", "0.17.1"}
