"""Who is told to leave leaves, a lost store means a checkpoint, and a run that is told to end ends with one."""

import re
import signal
import sys
from contextlib import contextmanager

import pytest

from harness.flag_runs import SCRIPT, VARIABLES, agents, make_dataset, needs_training, printed, train, words_of
from harness.forked import TRAINING_CODE
from harness.plain_lines import require_plain
from harness.processes import send_signal
from harness.started import Started, by_hand
from harness.stores import store_apart
from recycle.control.host.agent import LEFT, STOPPED

pytestmark = [needs_training, pytest.mark.timeout(900)]
ALONE = ("--pipeline-model-parallel-size", 1)
ON = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms", "--recycle-restarts", 0)


@pytest.fixture
def store():
    with store_apart() as served:
        yield served


@pytest.mark.parametrize(
    "asks",
    [
        signal.SIGUSR2,
        pytest.param(signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
    ],
    ids=lambda number: number.name,
)
def test_the_signal_that_megatron_takes_ends_a_run_with_a_checkpoint(tmp_path, monkeypatch, asks):
    """Sent to one rank."""
    dataset, slow, saved = make_dataset(tmp_path / "text"), tmp_path / "slow", tmp_path / "saved"
    slow.touch()
    monkeypatch.setenv("PACE", str(slow))
    monkeypatch.setenv("PACE_SECONDS", "0.7")
    settings = ("--save-interval", 10**6, "--ckpt-format", "torch", "--save", saved)
    settings += ("--exit-signal-handler", "--exit-signal", asks.name)
    sent = []

    def watch(launcher, output):
        if " iteration        2/" in output and not sent:
            sent.append(agents(launcher.pid)[1])
            send_signal(sent[0], asks)

    told = train(dataset, *ALONE, *ON, *settings, ranks=2, iterations=200, script="paced_gpt.py", watch=watch)
    (checkpoint,) = saved.glob("iter_*")
    assert checkpoint.name == f"iter_{max(told.trained):07d}"
    assert max(told.trained) < 200


@contextmanager
def trained_alone(store, folder):
    """Two pipelines of one rank each, and their dataset; without agents, so with few processes."""
    dataset, slow = make_dataset(folder / "text"), folder / "slow"
    slow.touch()
    settings = ("--save-interval", 10**6, "--ckpt-format", "torch", "--save", folder / "saved")
    arguments = words_of(dataset, *ALONE, *ON, *settings, iterations=200, script="paced_gpt.py")
    # No iteration is too short for what is waited for to happen in the middle of the run.
    paced = {"PACE": str(slow), "PACE_SECONDS": "0.7", "LOCAL_RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    words = [sys.executable, str(SCRIPT.with_name("bare_rank.py")), *arguments]
    given = [VARIABLES | paced | by_hand(rank, 2, store.host, store.port) for rank in range(2)]
    ranks = [Started(words, None, variables, TRAINING_CODE) for variables in given]
    try:
        yield ranks, dataset
    finally:
        for rank in ranks:
            rank.kill()


def test_leaving_losing_the_store_and_ending_lose_nothing(store, tmp_path):
    """What agents do about signals is tested with them."""
    saved = tmp_path / "saved"
    with trained_alone(store, tmp_path) as (ranks, dataset):
        ranks[1].wait_for(" iteration        2/", 300)
        ranks[1].process.send_signal(signal.SIGTERM)
        ranks[0].wait_for("recycle: W1_0 leaves: SIGTERM; training goes on with 1 server,", 300)
        assert ranks[1].ended(300) == LEFT
        store.kill()
        ranks[0].wait_for("successfully saved checkpoint from iteration", 300)
        assert "the store is lost: training goes on" in ranks[0].output
        ranks[0].process.send_signal(signal.SIGTERM)
        assert ranks[0].ended(300) == STOPPED
    told = printed("".join(rank.output for rank in ranks))
    (end,) = re.findall(r"told to end: training has ended after (\d+) iterations, with a checkpoint", told.output)
    assert max(told.trained) == int(end) == int((saved / "latest_checkpointed_iteration.txt").read_text())
    assert len(list(saved.glob("iter_*"))) == 2
    stock = train(dataset, *ALONE, ranks=1, iterations=8).trained
    assert set(stock) <= set(told.trained)
    for iteration, (loss, _) in stock.items():
        assert float(told.trained[iteration][0]) == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.long
def test_a_death_while_the_store_is_lost_ends_the_run_with_the_name_of_the_server(store, tmp_path):
    with trained_alone(store, tmp_path) as (ranks, _):
        ranks[1].wait_for(" iteration        2/", 300)
        store.kill()
        ranks[0].wait_for("successfully saved checkpoint from iteration", 300)
        ranks[1].process.kill()
        assert ranks[0].ended(300) == STOPPED
    cause = "a server failed (the connection to W1_0 was closed) while the store was lost"
    assert f"recycle: {cause}: go on from the last checkpoint, if there is one\n" in ranks[0].output
    require_plain(*ranks[0].output.splitlines())
