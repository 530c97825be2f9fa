"""What others do who reach the ports of a run and lack its token."""

import os
import re
import signal
import sys
from contextlib import ExitStack, contextmanager

import pytest

from harness.digests import data_digests
from harness.processes import send_signal
from harness.started import Started
from recycle.control.board.joinfile import JoinFile
from recycle.runtime.checkpoint_folders import DIGESTS

MODEL = "layers = 1\nhidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\nlearning_rate = 0.01\n"

ITERATIONS = 40
HOLDS = 2, 20, 35
HELD_TRAIN = (sys.executable, "-m", "harness.scripts.held_train")
VANDAL_WORDS = (sys.executable, "-m", "harness.scripts.vandal")


SIZE = ("--pipelines", "2", "--stages", "2", "--micro-batches", "4", "--iterations", str(ITERATIONS))
SEEDS = [int.from_bytes(os.urandom(3)) for _ in range(2)]


def trained(folder, *more):
    """A run of two pipelines of two stages, which waits before some iterations until it is told to go on."""
    (folder / "model.toml").write_text(MODEL.replace("layers = 1", "layers = 2") + "exact = true\n")
    words = ["train", *SIZE, *more, "--model", str(folder / "model.toml"), "-o", str(folder / "run")]
    return Started([*HELD_TRAIN, *words], variables={"HELD": str(folder)})


def strike(folder, seed):
    """Somebody who strikes at the store of a run."""
    door = JoinFile.read(folder / "run" / "join.json")
    vandal = Started([*VANDAL_WORDS, door.host, str(door.port), str(seed)])
    vandal.wait_for("beginning 0")
    return vandal


def hold(folder):
    """Have a run wait before each of some iterations."""
    for step in HOLDS:
        (folder / str(step)).touch()


def go_on(folder, step):
    """Have it wait no longer before one."""
    (folder / str(step)).unlink()


def files(folder):
    """What the last checkpoint of a run holds."""
    last = max((folder / "run" / "checkpoints").glob("step-*"))
    return {str(each.parent.relative_to(last)): data_digests(each.parent) for each in last.glob(f"**/{DIGESTS}")}


@contextmanager
def struck(folder, seed):
    """Such a run, and the stranger that has struck 400 times at its store and goes on."""
    sys.stdout.write(f"seed {seed}\n")
    hold(folder)
    with ExitStack() as ends:
        run = trained(folder, "--restarts", "1")
        ends.callback(run.kill)
        run.wait_for("iteration 2/")
        vandal = strike(folder, seed)
        ends.callback(vandal.kill)
        go_on(folder, HOLDS[0])
        vandal.wait_for("400 strikes")
        yield run, vandal


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What an undisturbed run leaves."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run = trained(folder)
    try:
        assert run.ended() == 0, run.output
    finally:
        run.kill()
    return files(folder)


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS, ids=lambda _: "seed")
def test_whatever_a_stranger_does_to_the_store_no_worker_dies_of_it_and_no_number_is_wrong(tmp_path, undisturbed, seed):
    """With a kill and a return, between which and the end it goes on."""
    with struck(tmp_path, seed) as (run, vandal):
        vandal.process.send_signal(signal.SIGUSR1)
        vandal.wait_for("pause 0")
        (worker,) = run.processes("^recycle: W1_0")
        send_signal(worker, signal.SIGKILL)
        go_on(tmp_path, HOLDS[1])
        run.wait_for(": 4 of 4 servers")
        vandal.process.send_signal(signal.SIGUSR1)
        vandal.wait_for("800 strikes")
        go_on(tmp_path, HOLDS[2])
        assert run.ended() == 0, run.output
        assert vandal.ended() == 0, vandal.output
    deaths = re.findall(r"(W\S+) .*(?:was killed|has given no sign|did not answer)", run.output)
    assert len(deaths) == 1, run.output
    assert "a stranger writes to the store" in run.output
    assert files(tmp_path) == undisturbed
