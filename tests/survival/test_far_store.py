"""Runs whose etcd is far away: each answer of it takes 200 ms, and what took milliseconds takes seconds."""

import signal
from functools import partial

import pytest

from harness.etcd import etcd, missing
from harness.far_away import far_away
from harness.processes import send_signal
from harness.started import TRAIN, losses, newest_view, small_run, wait_until

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(600), pytest.mark.long]

PATIENCE = 240.0


def is_in_view(folder, epoch, servers):
    view = newest_view(folder)
    return view.epoch >= epoch and len(view.servers) == servers


def test_after_a_death_training_goes_on_and_the_server_comes_back(tmp_path, start):
    folder = tmp_path / "run"
    with etcd() as served, far_away(served.members[0].address[1], 0.1) as port:
        run = start([*TRAIN, *small_run(folder, 2, 2, 100_000, "--store", f"etcd://127.0.0.1:{port}/far")])
        run.wait_for("iteration 5/", PATIENCE)
        send_signal(run.processes(r"^recycle: W1_1$")[0], signal.SIGKILL)
        for epoch, servers in ((1, 3), (2, 4)):
            wait_until(partial(is_in_view, folder, epoch, servers), PATIENCE)
            made = max(losses(folder))
            wait_until(lambda made=made: max(losses(folder)) > made + 2, PATIENCE)
        send_signal(run.process.pid, signal.SIGTERM)
        assert run.ended(PATIENCE) == 128 + signal.SIGTERM, run.output
