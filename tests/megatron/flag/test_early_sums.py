"""With --overlap-grad-reduce, buckets are summed in the last backward pass, and a server may die in one of these."""

import random

import pytest

from harness.flag_runs import losses, nearly, needs_training, norms, train

pytestmark = [needs_training, pytest.mark.timeout(1200)]

ITERATIONS = 8
CUT = ("--num-layers", 2, "--overlap-grad-reduce", "--ddp-bucket-size", 4000)
SHARDED = ("--pipeline-model-parallel-size", 1, "--global-batch-size", 12, "--use-distributed-optimizer")
VIRTUAL = ("--pipeline-model-parallel-size", 2, "--num-layers", 4, "--num-virtual-stages-per-pipeline-rank", 2)
ON = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms", "--recycle-restarts", 0)
EARLY = "a sum begins in a backward pass"


@pytest.mark.parametrize(
    ("settings", "ranks"),
    [
        (SHARDED, 3),
        pytest.param((), 4, marks=pytest.mark.long),
        pytest.param(("--tensor-model-parallel-size", 2, "--sequence-parallel"), 8, marks=pytest.mark.long),
        pytest.param(VIRTUAL, 4, marks=pytest.mark.long),
    ],
)
def test_killed_between_the_start_of_a_sum_and_its_end(dataset, settings, ranks):
    stock = train(dataset, *CUT, *settings, ranks=ranks)
    turn = random.randrange(1, 16)
    survived = train(dataset, *CUT, *settings, *ON, ranks=ranks, accidents=f"1:early:{turn}")
    assert "killed by signal 9 (SIGKILL)" in survived.output, turn
    assert losses(survived) == nearly(stock), turn
    assert norms(survived) == pytest.approx(norms(stock), abs=0.002), turn
    # In each iteration, on the servers that are left.
    assert survived.output.count(EARLY) > ITERATIONS


@pytest.mark.long
@pytest.mark.parametrize("format", ["torch", "torch_dist"])
def test_a_checkpoint_of_buckets_loads_in_stock(dataset, tmp_path, format):
    stock = train(dataset, *CUT, *SHARDED, ranks=3)
    saved = ("--ckpt-format", format, "--save-interval", 4, "--save", tmp_path, "--exit-interval", 4)
    train(dataset, *CUT, *SHARDED, *ON, *saved, ranks=3, accidents="2:early:20")
    resumed = losses(train(dataset, *CUT, *SHARDED, "--ckpt-format", format, "--load", tmp_path, ranks=3))
    assert resumed["trained", 5] == nearly(stock)["trained", 5]
