"""Runs whose etcd answers and does not do its work, as it is full or has lost its data; or is far away."""

import signal
from functools import partial

import pytest

from harness.etcd import etcd, missing
from harness.far_away import far_away
from harness.processes import send_signal
from harness.started import TRAIN, count_iterations, losses, newest_view, small_run, wait_until

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(600)]

QUOTA = 1 << 24
PATIENCE = 240.0


def is_in_view(folder, epoch, servers):
    view = newest_view(folder)
    return view.epoch >= epoch and len(view.servers) == servers


def require_unprotected(run, folder, cause):
    """Training goes on, and there is a checkpoint where none was asked for."""
    run.wait_for("no failure can be survived until it is back")
    assert cause in run.output
    wait_until(lambda: list(folder.glob("checkpoints/step-*")))
    wait_until(lambda: all(b"the store is lost" in each.read_bytes() for each in recordings(folder)))
    made = count_iterations(folder)
    wait_until(lambda: count_iterations(folder) > made + 2)


def recordings(folder):
    return [folder / "events" / f"W{pipeline}_0.jsonl" for pipeline in range(2)]


def test_a_run_whose_etcd_has_lost_its_data_goes_on_without_it_and_ends_in_good_order(tmp_path, start):
    folder = tmp_path / "run"
    with etcd() as served:
        run = start([*TRAIN, *small_run(folder, 2, 1, 100_000, "--store", served.url)])
        run.wait_for("iteration 5/")
        served.members[0].start_anew()
        require_unprotected(run, folder, "etcd came back without its data")
        send_signal(run.process.pid, signal.SIGTERM)
        assert run.ended() == 128 + signal.SIGTERM, run.output
        assert "the store is back" not in run.output
        steps = list(losses(folder))
        assert steps == list(range(len(steps)))


def test_a_run_finds_out_before_it_needs_etcd_and_survives_deaths_again_afterwards(tmp_path, start):
    folder = tmp_path / "run"
    with etcd(quotas=[QUOTA]) as served:
        run = start([*TRAIN, *small_run(folder, 2, 1, 100_000, "--store", served.url)])
        run.wait_for("iteration 5/")
        served.fill()
        require_unprotected(run, folder, "a member is full, so it takes no writes; run etcdctl compact")
        served.make_room()
        wait_until(lambda: all(b"the store is back" in each.read_bytes() for each in recordings(folder)))

        send_signal(run.processes(r"^recycle: W1_0$")[0], signal.SIGKILL)
        # It is missed, and comes back in another life.
        wait_until(partial(is_in_view, folder, 2, 2))
        made = count_iterations(folder)
        wait_until(lambda: count_iterations(folder) > made + 2)
        send_signal(run.process.pid, signal.SIGTERM)
        assert run.ended() == 128 + signal.SIGTERM, run.output
        steps = list(losses(folder))
        assert steps == list(range(len(steps)))


@pytest.mark.long
def test_far_from_etcd_training_goes_on_after_a_death_and_the_server_comes_back(tmp_path, start):
    """Each answer of it takes 200 ms, and what took milliseconds takes seconds."""
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
