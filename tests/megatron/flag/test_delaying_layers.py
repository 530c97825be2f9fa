"""Under the flag, layers that can leave their weight gradients do so as soon as a plan wants it, and only then."""

import random
import re

import pytest

from harness.flag_runs import deaths, losses, nearly, needs_training, survive, train
from harness.scripts.delaying_gpt import LATE

pytestmark = [needs_training, pytest.mark.timeout(1200)]

RETURNING = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms")
ON = (*RETURNING, "--recycle-restarts", 0)
ENGINE = ("--transformer-impl", "transformer_engine")
RUN = {"script": "delaying_gpt.py", "told": {"SCRIPT": "accident_prone_gpt.py"}}


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("--overlap-grad-reduce",), marks=pytest.mark.long),
        pytest.param(("--use-distributed-optimizer", "--recompute-activations"), marks=pytest.mark.long),
    ],
)
def test_a_job_that_starts_with_all_servers_splits_its_backward_pass_after_a_death(dataset, options):
    stock = train(dataset, *ENGINE, *options, **RUN)
    assert LATE not in stock.output
    accident = f"{random.randrange(4)}:forward:{random.randint(13, 24)}"
    survived = train(dataset, *ENGINE, *options, *ON, accidents=accident, **RUN)
    assert losses(survived) == nearly(stock), accident
    assert len(deaths(survived)) == 1
    undisturbed, since = re.split(r"iteration +3/", survived.output, maxsplit=1)
    assert (LATE in undisturbed, LATE in since) == (False, True), accident


@pytest.mark.long
def test_a_server_that_comes_back_changes_nothing(dataset, tmp_path):
    """Its peers compute weight gradients at once again."""
    stock, victim = train(dataset, *ENGINE, **RUN), random.randrange(4)
    paced = {"script": "delaying_gpt.py", "told": {"SCRIPT": "paced_gpt.py"}}
    survived = survive(dataset, tmp_path / "slow", [victim], *ENGINE, *RETURNING, **paced)
    assert losses(survived) == nearly(stock), victim
