"""Under the flag, layers that can leave their weight gradients do so as soon as a plan wants it, and only then."""

import random
import re

import pytest

from harness.flag_runs import deaths, kill_in_turn, losses, nearly, needs_training, returns, train
from harness.scripts.delaying_gpt import LATE

pytestmark = [needs_training, pytest.mark.timeout(1200)]

RETURNING = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms")
ON = (*RETURNING, "--recycle-restarts", 0)
ENGINE = ("--transformer-impl", "transformer_engine")
LENGTH = 8


def run(dataset, *arguments, script="accident_prone_gpt.py", watch=lambda *_: None, **told):
    told["SCRIPT"] = script
    return train(dataset, *ENGINE, *arguments, iterations=LENGTH, script="delaying_gpt.py", told=told, watch=watch)


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("--overlap-grad-reduce",), marks=pytest.mark.long),
        pytest.param(("--use-distributed-optimizer", "--recompute-activations"), marks=pytest.mark.long),
    ],
)
def test_a_job_that_starts_with_all_servers_splits_its_backward_pass_after_a_death(dataset, options):
    stock = run(dataset, *options)
    assert LATE not in stock.output
    accident = f"{random.randrange(4)}:forward:{random.randint(13, 24)}"
    survived = run(dataset, *options, *ON, ACCIDENTS=accident)
    assert losses(survived) == nearly(stock), accident
    assert len(deaths(survived)) == 1
    undisturbed, since = re.split(r"iteration +3/", survived.output, maxsplit=1)
    assert (LATE in undisturbed, LATE in since) == (False, True), accident


@pytest.mark.long
def test_a_server_that_comes_back_changes_nothing(dataset, tmp_path):
    """Its peers compute weight gradients at once again."""
    stock, victim, slow = run(dataset), random.randrange(4), tmp_path / "slow"
    watch = kill_in_turn([victim], slow)
    survived = run(dataset, *RETURNING, script="paced_gpt.py", watch=watch, PACE=str(slow))
    assert losses(survived) == nearly(stock), victim
    assert returns(survived) == deaths(survived)
    assert len(deaths(survived)) == 1
