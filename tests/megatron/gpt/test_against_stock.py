"""Training by a plan against Megatron's own schedule: the same losses and parameters, to the bit where possible."""

import msgspec
import pytest
import torch

from harness.examples import paper_job, plan_around
from harness.gpt_runs import OPTIONS, all_losses, train_by_plan, train_by_stock
from harness.undisturbed import trained_by_plan
from recycle.job import Server
from recycle.plan.mode import Mode

JOB = paper_job(pipelines=2, stages=2, micro_batches=4, limit=4, released=0)
STEPS = 5


@pytest.mark.parametrize("tied", [pytest.param(False, marks=pytest.mark.long), True])
def test_fault_free_training_is_that_of_the_stock_schedule_to_the_bit(tied):
    options = msgspec.structs.replace(OPTIONS, tied=tied)
    stock = train_by_stock(JOB, STEPS, options)
    # The stock run names its losses by server and place.
    expected = {
        f"{step} {home} {number}": all_losses(stock)[f"{step} W{home}_1 {number}"]
        for step in range(STEPS)
        for home in range(2)
        for number in range(4)
    }
    assert len(expected) == 2 * 4 * STEPS
    fused = train_by_plan(plan_around(JOB, mode=Mode("fused", "global")), STEPS, options)
    assert all_losses(fused) == expected
    assert all(result.parameters == stock[server].parameters for server, result in fused.items())
    split = train_by_plan(plan_around(JOB), STEPS, options)
    assert all_losses(split) == pytest.approx(expected, rel=1e-6)
    assert expected["0 0 0"] > expected[f"{STEPS - 1} 0 0"]


@pytest.mark.parametrize(
    ("tied", "failed"),
    [
        (True, "W0_0"),
        (False, "W1_1"),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((False, "W0_0"), (True, "W1_1"))),
    ],
)
def test_training_without_a_server_is_the_same_training(shared_runs, tied, failed):
    options = msgspec.structs.replace(OPTIONS, tied=tied, dropout=0.1)
    whole = trained_by_plan(shared_runs, plan_around(JOB), STEPS, options)
    degraded = train_by_plan(plan_around(JOB, failed), STEPS, options)
    assert Server.parse(failed) not in degraded
    assert all_losses(degraded) == pytest.approx(all_losses(whole), rel=1e-5)
    for server, result in degraded.items():
        peers = [other.parameters for each, other in degraded.items() if each.stage == server.stage]
        assert all(other == result.parameters for other in peers)
        # Adam turns rounding of gradients near zero into whole steps, so parameters agree less closely than losses.
        torch.testing.assert_close(
            torch.tensor(result.parameters), torch.tensor(whole[server].parameters), rtol=1e-3, atol=1e-3
        )
