"""A loss in which every token of the batch counts the same, with numbers of tokens that differ by micro-batch."""

import msgspec
import pytest
import torch

from harness.examples import paper_job, plan_around
from harness.gpt_runs import OPTIONS, all_losses, train_by_plan, train_by_stock
from recycle.megatron.gpt.forward import token_loss
from recycle.megatron.gpt.training import Run
from recycle.plan.mode import Mode
from tests.megatron.gpt.test_training import MODEL, losses, plan

JOB = paper_job(pipelines=2, stages=2, micro_batches=4, limit=4, released=0)
STEPS = 5
PER_TOKEN = msgspec.structs.replace(OPTIONS, per_token_loss=True, tied=True)


def test_training_is_that_of_the_stock_schedule():
    stock = train_by_stock(JOB, STEPS, PER_TOKEN)
    fused = train_by_plan(plan_around(JOB, mode=Mode("fused", "global")), STEPS, PER_TOKEN)
    assert sorted(all_losses(fused).values()) == pytest.approx(sorted(all_losses(stock).values()), rel=1e-6)


def test_evaluation_is_not_counted(tmp_path):
    options = msgspec.structs.replace(MODEL, per_token_loss=True)
    without, _ = losses(Run(plan("W1_0"), options, 4, tmp_path / "without"))
    evaluated, held_out = losses(Run(plan("W1_0"), options, 4, tmp_path / "evaluated", evaluate_every=1))
    assert list(held_out) == [0, 1, 2, 3, 4]
    assert evaluated == without


def test_only_what_counts_is_summed():
    counted = torch.tensor([[True, False], [True, True]])
    total, tokens, report = token_loss(counted, torch.tensor([[1.0, 8.0], [2.0, 6.0]]))
    assert (total.item(), tokens.item(), report["lm loss"].item()) == (9, 3, 3)
    total, tokens, report = token_loss(torch.zeros(1, 1, dtype=torch.bool), torch.ones(1, 1))
    assert (total.item(), tokens.item(), report["lm loss"].item()) == (0, 0, 0)
