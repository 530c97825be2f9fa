"""Runs whose files are gone while they train: what they have read is not read again."""

import signal

import pytest

from harness.processes import send_signal
from harness.started import TRAIN, losses, newest_view, wait_until

pytestmark = pytest.mark.timeout(600)

MODEL = "layers = 1\nhidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\nlearning_rate = 0.01\n"


def test_a_server_comes_back_though_catalogue_and_model_are_gone(tmp_path, start):
    folder, model = tmp_path / "run", tmp_path / "model.toml"
    model.write_text(MODEL)
    size = ["--pipelines", "2", "--stages", "1", "--micro-batches", "2", "--iterations", "100000"]
    run = start([*TRAIN, "train", *size, "--model", str(model), "-o", str(folder)])
    run.wait_for("iteration 5/")
    for each in (folder / "plans.zip", folder / "plan.json", folder / "run.json", model):
        each.unlink()
    send_signal(run.processes(r"^recycle: W1_0$")[0], signal.SIGKILL)
    wait_until(lambda: newest_view(folder).epoch >= 2 and len(newest_view(folder).servers) == 2)
    send_signal(run.process.pid, signal.SIGTERM)
    assert run.ended() == 128 + signal.SIGTERM, run.output
    steps = list(losses(folder))
    assert steps == list(range(len(steps)))
