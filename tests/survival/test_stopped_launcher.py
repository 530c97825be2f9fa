"""A run whose launcher is stopped for a while: its servers go on, and it shows what they did meanwhile."""

import signal

import pytest

from harness.processes import send_signal
from harness.started import TRAIN, losses, wait_until

pytestmark = pytest.mark.timeout(600)

MODEL = "layers = 1\nhidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\nlearning_rate = 0.01\n"
ITERATIONS = 60


def test_it_shows_all_iterations_though_all_servers_have_ended_meanwhile(tmp_path, start):
    folder, model = tmp_path / "run", tmp_path / "model.toml"
    model.write_text(MODEL)
    size = ["--pipelines", "2", "--stages", "1", "--micro-batches", "2", "--iterations", str(ITERATIONS)]
    run = start([*TRAIN, "train", *size, "--model", str(model), "-o", str(folder)])
    run.wait_for("iteration 5/")
    send_signal(run.process.pid, signal.SIGSTOP)
    wait_until(lambda: len(losses(folder)) == ITERATIONS and not run.processes(r"^recycle: W\d_\d$"))
    send_signal(run.process.pid, signal.SIGCONT)
    assert run.ended() == 0, run.output
    shown = [f"iteration {number}/{ITERATIONS}: " in run.output for number in range(1, ITERATIONS + 1)]
    assert all(shown), run.output
