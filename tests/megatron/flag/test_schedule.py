"""Megatron's training code on a plan instead of its own schedule."""

from collections import Counter

import msgspec
import pytest
import torch

from harness.examples import QUICK, paper_job
from harness.gpt_runs import JOB, OPTIONS, PER_TOKEN, VARIANTS, mean_losses, train_by_stock
from harness.undisturbed import trained_by_stock
from recycle.job import Server
from recycle.megatron.flag.steps.gradients import LiveGradients
from recycle.megatron.shared.stage import MegatronStage
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


BUCKETS = {"overlap_grad_reduce": True, "bucket_size": 2000}


@pytest.mark.parametrize("backward", ["fused", "split"])
def test_buckets_are_summed_within_the_last_backward_pass(monkeypatch, tmp_path, backward):
    noted, computing = tmp_path / "noted", []

    def note(server, what):
        with noted.open("a") as file:
            print(server, what, file=file)

    def computed(compute):
        def act(stage, *arguments):
            computing.append(stage)
            result = compute(stage, *arguments)
            computing.remove(stage)
            return result

        return act

    def start_next(update, chunk):
        note(update._network.server, "within" if computing else "behind")
        start(update, chunk)

    start = LiveGradients._start_next
    monkeypatch.setattr(LiveGradients, "_start_next", start_next)
    for name in ("backward", "weight_gradient"):
        monkeypatch.setattr(MegatronStage, name, computed(getattr(MegatronStage, name)))
    made = plan(Mode(backward, "global"), "W0_1")
    whole = train_by_stock(JOB, STEPS, plan=made)
    first = noted.read_text().splitlines()
    assert set(first) == {f"{each} behind" for each in whole}
    noted.unlink()
    # Megatron cuts the first stage only: the sums of others are hidden behind its backward pass.
    assert train_by_stock(JOB, STEPS, plan=made, ddp=BUCKETS) == whole
    assert Counter(noted.read_text().splitlines()) == {
        "W0_0 within": 7 * STEPS,
        "W1_0 within": 7 * STEPS,
        "W1_1 within": STEPS,
    }


@pytest.mark.parametrize("backward", ["fused", "split"])
def test_buckets_are_summed_as_by_the_stock_schedule(shared_runs, backward):
    stock = trained_by_stock(shared_runs, JOB, STEPS, ddp=BUCKETS)
    planned = train_by_stock(JOB, STEPS, plan=plan(Mode(backward, "global")), data=False, ddp=BUCKETS)
    assert mean_losses(planned, STEPS) == mean_losses(stock, STEPS)


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


@pytest.mark.long
def test_with_sequence_parallelism_a_split_plan_trains_what_the_stock_schedule_trains():
    divided = {"tensor_parallel": 2, "sequence_parallel": True}
    stock = train_by_stock(JOB, STEPS, **divided)
    split = train_by_stock(JOB, STEPS, plan=plan(Mode("split", "global")), data=False, **divided)
    assert mean_losses(split, STEPS) == pytest.approx(mean_losses(stock, STEPS), rel=1e-6)
    for server, result in split.items():
        ours, theirs = (torch.tensor(each.parameters) for each in (result, stock[server]))
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_a_larger_batch_is_refused():
    with pytest.raises(RunError, match=r"num_microbatches is 5, and the plan has 4 per pipeline"):
        train_by_stock(with_micro_batches(5), 1, plan=plan(Mode()))


def test_a_smaller_batch_is_a_part_of_the_plan():
    stock = train_by_stock(with_micro_batches(3), STEPS)
    assert train_by_stock(with_micro_batches(3), STEPS, plan=plan(Mode("fused", "global"))) == stock
    degraded = train_by_stock(with_micro_batches(3), STEPS, plan=plan(Mode(), "W0_1"))
    assert mean_losses(degraded, STEPS) == pytest.approx(mean_losses(stock, STEPS), rel=1e-6)
