"""Pipelines that are not alike train what pipelines that are alike do, to the bit where sums are exact."""

import msgspec
import pytest

from harness.examples import QUICK, uneven_job
from recycle.faults.menu import Faults
from recycle.job import Job
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.training import Run, train
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.record.recording import EvaluationLine, IterationLine

UNEVEN = uneven_job()
EVEN = Job(2, 4, UNEVEN.stages, UNEVEN.latency, "even", placement=((0, 1), (2, 3)))
MODEL = ModelOptions(
    4,
    32,
    2,
    16,
    micro_batch_size=2,
    tied=True,
    dropout=0.1,
    learning_rate=0.01,
    clip=0.5,
    exact=True,
    per_token_loss=True,
    warm_up=2,
    decay="cosine",
    decay_steps=4,
)


pytestmark = pytest.mark.usefixtures("short_text")


def losses(job, folder, iterations, **changes):
    """Of every iteration and evaluation."""
    found = {}

    def watch(event):
        if isinstance(event, (IterationLine, EvaluationLine)) and event.losses:
            key = type(event), event.step
            # Every server that holds the last chunk tells all losses.
            assert found.setdefault(key, event.losses) == event.losses

    def make(dead):
        raise AssertionError("nobody fails here")

    run = Run(make_plan(job, (), Mode(), QUICK), MODEL, iterations, folder, evaluate_every=iterations)
    train(msgspec.structs.replace(run, **changes), watch, make, Faults())
    return found


@pytest.mark.long
def test_unequal_depth_and_unequal_loads_change_no_bit(tmp_path):
    alike = losses(EVEN, tmp_path / "even", 5)
    begun = losses(UNEVEN, tmp_path / "uneven", 3)
    # The same run goes on with pipelines that are alike, from the checkpoint that others wrote.
    ended = losses(EVEN, tmp_path / "after", 5, resume_from=tmp_path / "uneven")
    assert [len(each) for (kind, _), each in begun.items() if kind is IterationLine] == [8] * 3
    for (kind, step), expected in alike.items():
        if kind is IterationLine:
            assert (begun if step < 3 else ended)[kind, step] == expected
    assert ended[EvaluationLine, 5] == alike[EvaluationLine, 5]
