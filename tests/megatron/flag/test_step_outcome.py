"""Training code hears of the whole pipeline what became of a step, and asks once."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recycle.megatron.flag.steps import vote
from recycle.megatron.flag.steps.vote import StepOutcome, as_told


@pytest.fixture
def said(monkeypatch):
    """What other stages say, against which everything is compared; gives the list of what was asked."""
    asked = []

    def all_reduce(tensor, how, group):
        asked.append(tensor.tolist())
        tensor.copy_(torch.maximum(tensor, torch.tensor([0.0, 3.5, 7.0])[: len(tensor)]))

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(vote.parallel_state, "get_model_parallel_group", lambda: None)
    return asked


def training_of(outcome, counts_zeros):
    training = SimpleNamespace(
        logical_and_across_model_parallel_group=lambda made: made,
        reduce_max_stat_across_model_parallel_group=lambda figure, **_: ("asked", figure),
    )
    optimizer = SimpleNamespace(step=lambda: outcome)
    StepOutcome(optimizer, counts_zeros, training)
    return optimizer, training


@pytest.mark.parametrize("counts_zeros", [False, True])
def test_a_stage_without_figures_has_those_of_the_others(said, counts_zeros):
    optimizer, training = training_of((True, None, None), counts_zeros)
    for _ in range(2):
        assert optimizer.step() == (True, None, None)
        assert training.logical_and_across_model_parallel_group(True, group=None) is True
        assert training.reduce_max_stat_across_model_parallel_group(None, group=None) == 3.5
        if counts_zeros:
            assert training.reduce_max_stat_across_model_parallel_group(None) == 7
        # The learning rate.
        assert training.reduce_max_stat_across_model_parallel_group(0.1) == ("asked", 0.1)
    assert len(said) == 2


@given(st.none() | st.floats(0, 1e9))
def test_a_figure_that_all_stages_know_is_what_they_would_tell_each_other(figure):
    training = pytest.importorskip("megatron.training.utils")
    with pytest.MonkeyPatch.context() as alone:
        alone.setattr(torch.distributed, "all_reduce", lambda *_, **__: None)
        alone.setattr(torch.cuda, "current_device", lambda: "cpu")
        alone.setattr(training.mpu, "get_model_parallel_group", lambda: None)
        assert as_told(figure) == training.reduce_max_stat_across_model_parallel_group(figure)


def test_a_step_that_one_stage_has_not_made_is_made_by_none(said):
    optimizer, training = training_of((False, 9.0, None), False)
    optimizer.step()
    assert training.logical_and_across_model_parallel_group(False) is False
    assert training.reduce_max_stat_across_model_parallel_group(9.0) == 9
