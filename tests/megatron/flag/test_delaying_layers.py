"""Under the flag, layers that can leave their weight gradients do so as soon as a plan wants it, and only then."""

import random
import re

import pytest

from harness.flag_runs import deaths, kill, kill_in_turn, losses, nearly, needs_training, returns, train
from harness.scripts.delaying_gpt import LATE

pytestmark = [needs_training, pytest.mark.timeout(1200)]

RETURNING = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms")
ON = (*RETURNING, "--recycle-restarts", 0)
ENGINE = ("--transformer-impl", "transformer_engine")
LENGTH = 8


@pytest.fixture
def run(dataset, tmp_path):
    def trained(*arguments, watch=lambda *_: None):
        told = {"PACE": str(tmp_path / "slow")}
        return train(dataset, *ENGINE, *arguments, iterations=LENGTH, script="delaying_gpt.py", told=told, watch=watch)

    return trained


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("--overlap-grad-reduce",), marks=pytest.mark.long),
        pytest.param(("--use-distributed-optimizer", "--recompute-activations"), marks=pytest.mark.long),
    ],
)
def test_a_job_that_starts_with_all_servers_splits_its_backward_pass_after_a_death(run, options):
    stock = run(*options)
    assert LATE not in stock.output
    victim, when = random.choice((0, 1, 2, 3)), random.uniform(0, 0.2)
    survived = run(*options, *ON, watch=kill([(victim, 4, when)]))
    assert losses(survived) == nearly(stock), (victim, when)
    assert len(deaths(survived)) == 1
    undisturbed, since = re.split(r"iteration +4/", survived.output, maxsplit=1)
    assert (LATE in undisturbed, LATE in since) == (False, True), (victim, when)


@pytest.mark.long
def test_a_server_that_comes_back_changes_nothing(run, tmp_path):
    """Its peers compute weight gradients at once again."""
    stock, victim = run(), random.randrange(4)
    survived = run(*RETURNING, watch=kill_in_turn([victim], tmp_path / "slow"))
    assert losses(survived) == nearly(stock), victim
    assert returns(survived) == deaths(survived)
    assert len(deaths(survived)) == 1
