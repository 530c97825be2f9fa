"""Megatron's training code on a plan instead of its own schedule."""

import msgspec
import pytest
import torch

from harness.examples import QUICK, paper_job
from harness.gpt_runs import JOB, OPTIONS, PER_TOKEN, VARIANTS, mean_losses, train_by_stock
from harness.undisturbed import trained_by_stock
from recycle.job import Server
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.runtime.errors import RunError

STEPS = 4


def with_micro_batches(number):
    return paper_job(pipelines=2, stages=2, micro_batches=number, limit=4, released=0)


def plan(mode, *failed):
    return make_plan(JOB, [Server.parse(each) for each in failed], mode, QUICK)


@pytest.mark.parametrize("loss", [{}, PER_TOKEN], ids=["mean", "per token"])
def test_a_fused_plan_is_the_stock_schedule_to_the_bit_and_a_split_one_nearly(shared_runs, loss):
    options = msgspec.structs.replace(OPTIONS, tied=True)
    stock = trained_by_stock(shared_runs, JOB, STEPS, options, **loss)
    fused = train_by_stock(JOB, STEPS, options, plan(Mode("fused", "global")), data=False, **loss)
    assert fused == stock
    split = train_by_stock(JOB, STEPS, options, plan(Mode("split", "staggered")), data=False, **loss)
    assert mean_losses(split, STEPS) == pytest.approx(mean_losses(stock, STEPS), rel=1e-6)


@pytest.mark.parametrize(
    ("failed", "loss"),
    [
        pytest.param("W1_1", {}, id="mean without W1_1"),
        pytest.param("W0_0", PER_TOKEN, id="per token without W0_0"),
        pytest.param("W0_0", {}, marks=pytest.mark.long, id="mean without W0_0"),
        pytest.param("W1_1", PER_TOKEN, marks=pytest.mark.long, id="per token without W1_1"),
    ],
)
def test_with_a_dead_server_the_training_code_trains_on(shared_runs, failed, loss):
    options = msgspec.structs.replace(OPTIONS, tied=True)
    stock = trained_by_stock(shared_runs, JOB, STEPS, options, **loss)
    degraded = train_by_stock(JOB, STEPS, options, plan(Mode(), failed), **loss)
    assert Server.parse(failed) not in degraded
    assert mean_losses(degraded, STEPS) == pytest.approx(mean_losses(stock, STEPS), rel=1e-5)
    for server, result in degraded.items():
        assert all(
            other.parameters == result.parameters for each, other in degraded.items() if each.stage == server.stage
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_train_on_with_a_dead_server(variant):
    whole = train_by_stock(JOB, STEPS, plan=plan(Mode()), **VARIANTS[variant])
    degraded = train_by_stock(JOB, STEPS, plan=plan(Mode(), "W0_1"), **VARIANTS[variant])
    assert mean_losses(degraded, STEPS) == pytest.approx(mean_losses(whole, STEPS), rel=1e-5)
    peers = [each for each in degraded if each.stage == 0]
    assert len(peers) == 2
    assert degraded[peers[0]].parameters == degraded[peers[1]].parameters


def test_with_tensor_parallelism_a_fused_plan_is_the_stock_schedule_to_the_bit():
    stock = train_by_stock(JOB, STEPS, tensor_parallel=2)
    assert train_by_stock(JOB, STEPS, plan=plan(Mode("fused", "global")), data=False, tensor_parallel=2) == stock


def test_with_sequence_parallelism_a_split_plan_trains_what_the_stock_schedule_trains():
    divided = {"tensor_parallel": 2, "sequence_parallel": True}
    stock = train_by_stock(JOB, STEPS, **divided)
    split = train_by_stock(JOB, STEPS, plan=plan(Mode("split", "global")), data=False, **divided)
    assert mean_losses(split, STEPS) == pytest.approx(mean_losses(stock, STEPS), rel=1e-6)
    for server, result in split.items():
        ours, theirs = (torch.tensor(each.parameters) for each in (result, stock[server]))
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"plan": plan(Mode()), "ddp": {"overlap_grad_reduce": True}}, r"overlap_grad_reduce is on: .* turn it off"),
        (
            {"plan": plan(Mode()), "ddp": {"use_distributed_optimizer": True, "overlap_param_gather": True}},
            r"overlap_param_gather is on: .* turn it off",
        ),
    ],
)
def test_what_a_plan_cannot_run_with_is_one_clear_line(arguments, message):
    with pytest.raises(RunError, match=message):
        train_by_stock(JOB, 1, **arguments)


def test_a_larger_batch_is_refused():
    with pytest.raises(RunError, match=r"num_microbatches is 5, and the plan has 4 per pipeline"):
        train_by_stock(with_micro_batches(5), 1, plan=plan(Mode()))


def test_a_smaller_batch_is_a_part_of_the_plan():
    stock = train_by_stock(with_micro_batches(3), STEPS)
    assert train_by_stock(with_micro_batches(3), STEPS, plan=plan(Mode("fused", "global"))) == stock
    degraded = train_by_stock(with_micro_batches(3), STEPS, plan=plan(Mode(), "W0_1"))
    assert mean_losses(degraded, STEPS) == pytest.approx(mean_losses(stock, STEPS), rel=1e-6)
