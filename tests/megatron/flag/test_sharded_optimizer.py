"""Under the flag Megatron's distributed optimizer loses no shard with a server, and its checkpoints are stock's."""

import random
import re

import pytest

from harness.flag_runs import kill, kill_in_turn, make_dataset, needs_training, train
from tests.megatron.flag.test_surviving import deaths, losses, nearly

pytestmark = [needs_training, pytest.mark.timeout(1200)]

RANKS, LENGTH = 6, 10
SHARDED = ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather", "--global-batch-size", 12)
RETURNING = (*SHARDED, "--pipeline-schedule", "recycle", "--recycle-budget", "500ms")
ON = (*RETURNING, "--recycle-restarts", 0)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("data") / "text")


@pytest.fixture(scope="module")
def stock(dataset):
    return nearly(train(dataset, *SHARDED, ranks=RANKS, iterations=LENGTH))


@pytest.mark.parametrize(
    ("format", "accidents", "reader"),
    [
        # The first rank when it has written its shards, then one between the steps of its two shards.
        (("--ckpt-format", "torch_dist"), "0:written:1,4:adam:12", SHARDED),
        (("--ckpt-format", "torch_dist", "--dist-ckpt-optim-fully-reshardable"), "1:norm:4,3:written:1", SHARDED),
        # Who writes the shards of its stage, in the middle of the file; the rest goes on with that.
        (("--ckpt-format", "torch"), "3:save:1,1:adam:13", ON),
    ],
)
def test_killed_in_the_middle_of_something_no_shard_is_lost(
    dataset, stock, tmp_path, monkeypatch, format, accidents, reader
):
    monkeypatch.setenv("ACCIDENTS", accidents)
    saved = (*format, "--save-interval", 4, "--save", tmp_path)
    victim, when = random.choice((2, 5)), random.uniform(0, 0.2)
    survived = train(
        *(dataset, *ON, *saved),
        ranks=RANKS,
        iterations=LENGTH,
        script="accident_prone_gpt.py",
        watch=kill([(victim, 7, when)]),
    )
    assert len(deaths(survived)) == 3, (victim, when)
    assert losses(survived) == stock, (victim, when)
    assert "--overlap-param-gather is left out" in survived.output
    monkeypatch.delenv("ACCIDENTS")
    for step in (4, 8):
        again = (*reader, *format, "--load", tmp_path, "--ckpt-step", step, "--exit-interval", step + 1)
        resumed = losses(train(dataset, *again, ranks=RANKS, iterations=LENGTH))
        assert resumed["trained", step + 1] == stock["trained", step + 1]


def test_who_comes_back_gets_its_shards_and_the_others_go_in_turn(dataset, tmp_path, monkeypatch):
    """All servers of the last stage die one after another, so that each shard has come over more than once."""
    slow = tmp_path / "slow"
    monkeypatch.setenv("PACE", str(slow))
    length, calm = 40, ("--lr", 2e-3)
    stock = nearly(train(dataset, *SHARDED, *calm, ranks=RANKS, iterations=length))
    watch = kill_in_turn([3, 4, 5], slow)
    survived = train(dataset, *RETURNING, *calm, ranks=RANKS, iterations=length, script="paced_gpt.py", watch=watch)
    back = re.findall(r"with 6 servers, (W\d_\d) among them again", survived.output)
    assert deaths(survived) == back == ["W0_1", "W1_1", "W2_1"]
    assert losses(survived) == stock
