"""Under the flag, layers that can leave their weight gradients do so as soon as a plan wants it, and only then."""

import random
import re

import pytest

from harness.flag_runs import deaths, kill, losses, nearly, needs_training, returns, train
from harness.scripts.delaying_gpt import LATE

pytestmark = [needs_training, pytest.mark.timeout(1200)]

RETURNING = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms")
ON = (*RETURNING, "--recycle-restarts", 0)
ENGINE = ("--transformer-impl", "transformer_engine")
LENGTH = 8


def run(dataset, *arguments, **settings):
    return train(dataset, *ENGINE, *arguments, iterations=LENGTH, script="delaying_gpt.py", **settings)


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
    victim, when = random.choice((0, 1, 2, 3)), random.uniform(0, 0.2)
    survived = run(dataset, *options, *ON, watch=kill([(victim, 4, when)]))
    assert losses(survived) == nearly(stock), (victim, when)
    assert len(deaths(survived)) == 1
    undisturbed, since = re.split(r"iteration +4/", survived.output, maxsplit=1)
    assert (LATE in undisturbed, LATE in since) == (False, True), (victim, when)


@pytest.mark.long
def test_a_server_that_comes_back_changes_nothing(dataset):
    """Its peers compute weight gradients at once again."""
    stock = run(dataset)
    survived = run(dataset, *RETURNING, watch=kill([(random.choice((0, 1, 2, 3)), 3, random.uniform(0, 0.2))]))
    assert losses(survived) == nearly(stock)
    assert len(returns(survived)) == 1
