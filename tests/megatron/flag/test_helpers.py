"""Processes that a training script has started, after the end of its run."""

import signal
import uuid

import pytest

from harness.flag_runs import kill, make_dataset, needs_training, train
from harness.processes import environment, is_running, processes, send_signal
from harness.started import wait_until

pytestmark = [needs_training, pytest.mark.timeout(1200)]

ON = ("--pipeline-schedule", "recycle", "--recycle-budget", "100ms")
ALONE = ("--pipeline-model-parallel-size", 1)
LENGTH = 12


@pytest.fixture
def mark(monkeypatch):
    mark = uuid.uuid4().hex
    monkeypatch.setenv("HELPER", mark)
    yield mark
    for each in helpers(mark):
        send_signal(each, signal.SIGKILL)


def helpers(mark):
    return {each for each in processes() if environment(each).get("HELPS") == mark and is_running(each)}


@pytest.mark.parametrize("flag", [(), ON], ids=["stock", "flag"])
def test_they_outlive_the_good_end_of_a_run(tmp_path, mark, flag):
    train(make_dataset(tmp_path / "text"), *ALONE, *flag, ranks=2, iterations=2, script="helped_gpt.py")
    assert len(helpers(mark)) == 4


def test_those_of_a_worker_that_dies_do_not_outlive_it(tmp_path, mark):
    seen = set()
    die = kill([(1, 3, 0)])

    def watch(launcher, output):
        if "iteration        3/" in output:
            seen.update(helpers(mark))
        die(launcher, output)

    more = ("--recycle-restarts", 0)
    train(
        make_dataset(tmp_path / "text"),
        *ALONE,
        *ON,
        *more,
        ranks=2,
        iterations=LENGTH,
        script="helped_gpt.py",
        watch=watch,
    )
    wait_until(lambda: len(helpers(mark)) == 2)
    assert len(seen) == 4
    assert helpers(mark) < seen
