"""A gradient that is NaN is noticed where it was computed, as in stock Megatron, before others are given it."""

import pytest

from harness.flag_runs import follow, fork, losses, nearly, needs_training, train
from harness.undisturbed import trained_by_script

pytestmark = [needs_training, pytest.mark.timeout(1200)]

ON = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms", "--recycle-restarts", 0)
SHARDED = ("--use-distributed-optimizer", "--overlap-grad-reduce")
SPOILED = {"script": "nan_gpt.py", "told": {"NAN": "4,3"}}
FOUND = "found NaN in local grad norm"


@pytest.mark.parametrize("settings", [(), pytest.param(SHARDED, marks=pytest.mark.long)])
def test_peers_make_the_iteration_again_without_the_server_whose_gradient_is_nan(shared_runs, dataset, settings):
    stock = trained_by_script(shared_runs, dataset, *settings).left
    survived = train(dataset, *ON, *settings, "--rerun-mode", "disabled", **SPOILED)
    assert FOUND in survived.output
    assert "W1_1 ended with status 1" in survived.output
    assert losses(survived) == nearly(stock)


@pytest.mark.long
def test_megatrons_rerun_engine_ends_the_run_with_the_checkpoint_before_it(dataset, tmp_path):
    saves = ("--ckpt-format", "torch", "--save-interval", 100, "--save", tmp_path)
    with fork(dataset, *ON, *saves, **SPOILED) as started:
        output = follow(started, lambda *_: None)
    assert FOUND in output
    assert "unexpected result is reproducible" in output
    assert started.returncode == 1, output[-8000:]
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "3"
