"""Runs whose files are gone while they train: what they have read is not read again."""

import signal

import pytest

from harness.processes import send_signal
from harness.started import TRAIN, losses, newest_view, small_run, wait_until

pytestmark = pytest.mark.timeout(600)


def test_a_server_comes_back_though_catalogue_and_model_are_gone(tmp_path, start):
    folder = tmp_path / "run"
    run = start([*TRAIN, *small_run(folder, 2, 1, 100_000)])
    run.wait_for("iteration 5/")
    for each in (folder / "plans.zip", folder / "plan.json", folder / "run.json", tmp_path / "model.toml"):
        each.unlink()
    send_signal(run.processes(r"^recycle: W1_0$")[0], signal.SIGKILL)
    wait_until(lambda: newest_view(folder).epoch >= 2 and len(newest_view(folder).servers) == 2)
    send_signal(run.process.pid, signal.SIGTERM)
    assert run.ended() == 128 + signal.SIGTERM, run.output
    steps = list(losses(folder))
    assert steps == list(range(len(steps)))
