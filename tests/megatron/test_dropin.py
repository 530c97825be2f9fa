"""A user's script under the flag prints what it prints without it: losses, norms, evaluations; checkpoints go round."""

import pytest

from recycle.job import Server
from tests.megatron.dropin_runs import make_dataset, needs_training, train

pytestmark = needs_training

ON = ("--pipeline-schedule", "recycle")
DEAD = (*ON, "--recycle-failures", "W1_1", "--recycle-budget", "1s")
TO_FILE = ("--save-interval", 4, "--ckpt-format", "torch", "--save")
FROM_FILE = ("--ckpt-format", "torch", "--load")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("data") / "text")


@pytest.fixture(scope="module")
def stock(dataset):
    return train(dataset)


def nearly(printed):
    """The last printed digit of a loss depends on the order in which gradients were added."""
    numbers = {("trained", number): float(loss) for number, (loss, _) in printed.trained.items()}
    return numbers | {("evaluated", where): float(loss) for where, loss in printed.evaluated.items()}


def test_with_all_servers_everything_printed_is_the_same_to_the_digit(dataset, stock):
    flagged = train(dataset, *ON)
    assert len(stock.trained) == 8
    assert len(stock.evaluated) >= 3
    assert flagged.trained == stock.trained
    assert flagged.evaluated == stock.evaluated


def test_without_a_server_training_is_the_same_and_its_checkpoint_loads_in_stock(dataset, stock, tmp_path):
    first = train(dataset, *DEAD, *TO_FILE, tmp_path, "--exit-interval", 4)
    expected = nearly(stock)
    assert nearly(first) == {key: pytest.approx(expected[key], rel=1e-6) for key in nearly(first)}
    assert sorted(first.trained) == [1, 2, 3, 4]
    second = nearly(train(dataset, *FROM_FILE, tmp_path))
    # Megatron prints the mean of the first two iterations after a start in the place of the second.
    del second["trained", 6]
    assert second == {key: pytest.approx(expected[key], rel=1e-6) for key in second}
    assert ("trained", 8) in second


def test_a_stock_checkpoint_is_resumed_under_the_flag(dataset, stock, tmp_path):
    train(dataset, *TO_FILE, tmp_path, "--exit-interval", 4)
    resumed = train(dataset, *ON, *FROM_FILE, tmp_path)
    del resumed.trained[6]
    assert resumed.trained == {number: stock.trained[number] for number in (5, 7, 8)}


VARIANTS = {
    "tensor parallel, bf16, recompute, per token": (
        *(8, "--tensor-model-parallel-size", 2, "--bf16", "--calculate-per-token-loss"),
        *("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", 1),
    ),
    "cyclic data, untied, timers": (
        *(4, "--dataloader-type", "cyclic", "--untie-embeddings-and-output-weights"),
        *("--timing-log-level", 2, "--log-params-norm"),
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_print_the_same_with_and_without_a_server(dataset, variant):
    ranks, *arguments = VARIANTS[variant]
    stock = train(dataset, *arguments, ranks=ranks, iterations=4)
    flagged = train(dataset, *arguments, *DEAD, ranks=ranks, iterations=4)
    # bfloat16 rounds sums of another order to other values now and then.
    assert nearly(flagged) == pytest.approx(nearly(stock), rel=1e-4 if "bf16" in variant else 2e-6)
    for name in ("forward-backward", "forward-compute", "backward-compute"):
        assert (name in flagged.output) == (name in stock.output) == ("timers" in variant)


def test_dropout_is_the_same_whoever_is_dead(dataset):
    dropout = ("--hidden-dropout", 0.1, "--attention-dropout", 0.1)
    whole = train(dataset, *dropout, *ON, iterations=3)
    assert nearly(train(dataset, *dropout, *DEAD, iterations=3)) == pytest.approx(nearly(whole), rel=2e-6)


def test_a_refusal_is_one_line_of_the_first_rank(dataset):
    with pytest.raises(AssertionError) as refused:
        train(dataset, *ON, "--recycle-failures", Server(7, 0))
    lines = [line for line in str(refused.value).splitlines() if line.startswith("recycle: ")]
    assert [line for line in lines if "no CUDA" not in line] == [
        "recycle: server W7_0: this job has pipelines 0 to 1 and stages 0 to 1, so its last server is W1_1"
    ]
