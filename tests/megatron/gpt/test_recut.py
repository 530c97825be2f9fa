"""A run goes on from a checkpoint of a model that was cut into another number of stages."""

import pytest

from harness.examples import QUICK, paper_job
from recycle.faults.menu import Faults
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.training import Run, train
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.record.recording import IterationLine

MODEL = ModelOptions(2, 32, 2, 16, tied=True, learning_rate=0.01)
ITERATIONS = 5


def losses(folder, stages, iterations, resume_from=None):
    """The mean loss of each iteration, by its number."""
    found = {}

    def watch(event):
        if isinstance(event, IterationLine) and event.losses:
            found[event.step] = sum(event.losses) / len(event.losses)

    def make(dead):
        raise AssertionError("nobody fails here")

    job = paper_job(pipelines=1, stages=stages, micro_batches=2, released=0)
    train(
        Run(make_plan(job, (), Mode(), QUICK), MODEL, iterations, folder, resume_from=resume_from),
        watch,
        make,
        Faults(),
    )
    return found


@pytest.mark.usefixtures("short_text")
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_tied_model_goes_on_in_another_number_of_stages(tmp_path, before, after):
    whole = losses(tmp_path / "whole", before, ITERATIONS)
    losses(tmp_path / "begun", before, 3)
    ended = losses(tmp_path / "ended", after, ITERATIONS, tmp_path / "begun")
    assert sorted(ended) == [3, 4]
    # Sums are made in another order. Without what the optimizer knows, they would differ in the third digit.
    assert ended == {step: pytest.approx(whole[step], rel=1e-5) for step in ended}
