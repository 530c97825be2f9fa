"""A user's script under the flag prints what it prints without it: losses, norms, evaluations; checkpoints go round."""

import re
import signal

import pytest

from harness.flag_runs import agents, losses, nearly, needs_training, returns, survive, train
from harness.processes import children, send_signal
from harness.started import newest_view
from harness.undisturbed import trained_by_script
from recycle.job import Server

# Every test starts processes that import Megatron, which takes its time where others are at work as well.
pytestmark = [needs_training, pytest.mark.timeout(1200)]

ON = ("--pipeline-schedule", "recycle")
PROTECTED = "recycle: this run is protected: if a server dies, training goes on"
DEAD = (*ON, "--recycle-dead", "W1_1", "--recycle-budget", "1s")
TO_FILE = ("--save-interval", 4, "--ckpt-format", "torch", "--save")
FROM_FILE = ("--ckpt-format", "torch", "--load")


@pytest.fixture(scope="module")
def stock(shared_runs, dataset):
    return trained_by_script(shared_runs, dataset).left


def test_with_all_servers_everything_printed_is_the_same_to_the_digit(dataset, stock):
    flagged = train(dataset, *ON)
    assert len(stock.trained) == 8
    assert len(stock.evaluated) >= 3
    assert flagged.trained == stock.trained
    assert flagged.evaluated == stock.evaluated


def test_without_a_server_training_is_the_same_and_its_checkpoint_loads_in_stock(dataset, stock, tmp_path):
    first = train(dataset, *DEAD, *TO_FILE, tmp_path, "--exit-interval", 4)
    expected = nearly(stock)
    assert losses(first) == {key: expected[key] for key in losses(first)}
    assert sorted(first.trained) == [1, 2, 3, 4]
    second = losses(train(dataset, *FROM_FILE, tmp_path))
    # Megatron prints the mean of the first two iterations after a start in the place of the second.
    del second["trained", 6]
    assert second == {key: expected[key] for key in second}
    assert ("trained", 8) in second


def test_a_refusal_is_one_line_of_the_first_rank(dataset):
    with pytest.raises(AssertionError) as refused:
        train(dataset, *ON, "--recycle-dead", Server(7, 0))
    lines = [line for line in str(refused.value).splitlines() if line.startswith("recycle: ")]
    assert [line for line in lines if "no CUDA" not in line] == [
        "recycle: server W7_0: this job has pipelines 0 to 1 and stages 0 to 1, so its last server is W1_1"
    ]


def test_with_one_pipeline_the_script_is_what_it_is_without_the_flag(dataset):
    stock = train(dataset, ranks=2, iterations=3)
    flagged = train(dataset, *ON, "--recycle-dead", "W0_1", ranks=2, iterations=3)
    assert (flagged.trained, flagged.evaluated) == (stock.trained, stock.evaluated)
    said = "the death of a server ends this run, which follows Megatron's own schedule: with one pipeline"
    assert flagged.output.count(said) == 1
    assert PROTECTED not in flagged.output


def test_servers_that_are_left_out_leave_before_the_first_iteration(dataset, tmp_path):
    """Then the others survive one more death, and take the server that died back."""
    survived = survive(dataset, tmp_path / "slow", [1], *DEAD, iterations=20)
    before, _, after = survived.output.partition("iteration        1/")
    assert before.count(f"{PROTECTED}; 4 servers, planned throughput 100% of") == survived.output.count(PROTECTED) == 1
    assert before.count("W1_1 leaves: --recycle-dead") == survived.output.count(" leaves: ") == 1
    assert re.search(r"W1_0 was killed by signal 9 .*; training goes on with 2 servers", after)
    assert returns(survived) == ["W1_0"]


@pytest.mark.parametrize("way", [pytest.param("left out", marks=pytest.mark.long), "told to leave"])
def test_who_is_late_where_a_server_leaves_finds_the_others_in_the_next_iteration(dataset, tmp_path, way):
    left_out = ("--recycle-dead", "W0_0") if way == "left out" else ()
    sent = []

    def watch(launcher, output):
        if " iteration        2/" in output and way != "left out" and not sent:
            sent.extend(children(agents(launcher.pid)[0]))
            send_signal(sent[0], signal.SIGTERM)

    settings = (*ON, "--recycle-budget", "1s", *left_out, "--recycle-record", tmp_path / "run")
    late = train(dataset, *settings, iterations=20, script="late_parting_gpt.py", watch=watch, patience=100.0)
    assert late.output.count("W0_0 leaves: ") == 1
    # A late rank that paused for the others once more would begin another view.
    assert newest_view(tmp_path / "run").epoch == 1
    assert list(late.trained) == list(range(1, 21))
