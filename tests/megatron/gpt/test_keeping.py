import pytest

from harness.examples import QUICK, paper_job
from recycle.megatron.gpt.keeping import SLACK, describe_keeping, keeper_limit, version_bytes
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.run import Run
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.runtime.errors import RunError
from recycle.state.errors import StateError

GPT_2 = ModelOptions(12, 768, 12, 1024, vocabulary=50257, tied=True)


def described(folder, **options):
    return Run(make_plan(paper_job(), (), Mode(), QUICK), ModelOptions(), 2, folder, **options)


def test_a_version_has_parameters_and_two_moments():
    # The 124 million of GPT-2, whose number is known; cut into stages, the last has a copy of the embedding.
    parameters = 124_439_808
    assert version_bytes(GPT_2, 1) == pytest.approx(12 * parameters + SLACK, abs=12 * 200)
    assert version_bytes(GPT_2, 4) - version_bytes(GPT_2, 1) == 12 * 50257 * 768


def test_memory_is_asked_for_before_a_run_starts(tmp_path, monkeypatch):
    assert keeper_limit(described(tmp_path)) == 0
    run = described(tmp_path, copies=1)
    assert keeper_limit(run) == 4 * version_bytes(run.model, 4)
    assert "MiB for every iteration" in describe_keeping(run)
    with pytest.raises(StateError, match="copies is 2, and this run has 1 host"):
        keeper_limit(described(tmp_path, copies=2))
    monkeypatch.setattr("recycle.megatron.gpt.keeping.available_memory", lambda: 1 << 20)
    with pytest.raises(RunError, match=r"4 versions of this model take .* MiB, and this host has 1 MiB left"):
        keeper_limit(run)
