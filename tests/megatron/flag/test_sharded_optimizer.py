"""Under the flag Megatron's distributed optimizer loses no shard with a server, and its checkpoints are stock's."""

import random
import re

import pytest

from harness.flag_runs import deaths, kill, losses, nearly, needs_training, norms, returns, survive, train
from harness.undisturbed import trained_by_script

pytestmark = [needs_training, pytest.mark.timeout(1200)]

RANKS, LENGTH = 3, 20
SHARDED = ("--pipeline-model-parallel-size", 1, "--global-batch-size", 12, "--num-layers", 2, "--lr", 2e-3)
OVERLAPPED = "--overlap-param-gather"
SHARDED += ("--use-distributed-optimizer", "--overlap-grad-reduce", OVERLAPPED)
RETURNING = (*SHARDED, "--pipeline-schedule", "recycle", "--recycle-budget", "500ms")
ON = (*RETURNING, "--num-distributed-optimizer-instances", RANKS, "--recycle-restarts", 0)
ON += ("--overlap-param-gather-with-optimizer-step",)


@pytest.fixture(scope="module")
def stock(shared_runs, dataset):
    return nearly(trained_by_script(shared_runs, dataset, *SHARDED, ranks=RANKS, iterations=LENGTH).left)


@pytest.mark.parametrize(
    ("format", "accidents"),
    [
        # The first rank when it has written its shard, then another one between the steps of two shards.
        pytest.param("torch_dist", "0:written:1,2:adam:12", marks=pytest.mark.long),
        # Who writes the shards of all, in the middle of the file.
        pytest.param("torch", "0:save:1,1:adam:17", marks=pytest.mark.long),
    ],
)
def test_killed_in_the_middle_of_something_no_shard_is_lost(dataset, stock, tmp_path, format, accidents):
    saved = ("--ckpt-format", format, "--save-interval", 4, "--save", tmp_path)
    survived = train(dataset, *ON, *saved, ranks=RANKS, iterations=LENGTH, accidents=accidents)
    assert len(deaths(survived)) == 2
    assert losses(survived) == stock
    assert "--overlap-param-gather-with-optimizer-step is left out" in survived.output
    # In format torch Megatron looks for the optimizer there, whatever --ckpt-step says.
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("8")
    again = ("--ckpt-format", format, "--load", tmp_path, "--exit-interval", 12)
    resumed = losses(train(dataset, *SHARDED, *again, ranks=RANKS, iterations=LENGTH))
    # Iterations before it show the parameters, and this one how many steps the optimizer has made as well.
    assert [resumed["trained", each] for each in (9, 12)] == [stock["trained", each] for each in (9, 12)]


COUNTED = ("--log-num-zeros-in-grad", "--untie-embeddings-and-output-weights", "--global-batch-size", 16)
TIED = ("--pipeline-model-parallel-size", 2)
VIRTUAL = (*TIED, "--num-layers", 4, "--num-virtual-stages-per-pipeline-rank", 2)
SPLIT = ("--tensor-model-parallel-size", 2, "--sequence-parallel")
EXPERTS = ("--global-batch-size", 24, "--num-experts", 4, "--expert-model-parallel-size", 2)
EXPERTS += ("--moe-token-dispatcher-type", "alltoall", "--disable-bias-linear", "--num-layers", 1)
ROUNDED = ("--bf16", "--grad-reduce-in-bf16")


@pytest.mark.parametrize(
    ("settings", "servers", "accidents"),
    [
        # Between the vote and the norm, and in a sum of gradients.
        (COUNTED, 4, "0:count:3,1:share:6"),
        # Between the norm and the step, and when parameters are given to the peers, in either stage of the embeddings.
        pytest.param(TIED, 6, "4:step:3,2:spread:6", marks=pytest.mark.long),
        pytest.param((*TIED, "--calculate-per-token-loss"), 6, "5:count:3,0:share:6", marks=pytest.mark.long),
        # Each server has two sums.
        pytest.param(VIRTUAL, 6, "1:spread:4,5:share:12", marks=pytest.mark.long),
        pytest.param(SPLIT, 6, "3:count:3", marks=pytest.mark.long),
        pytest.param(SPLIT, 6, "0:spread:3", marks=pytest.mark.long),
        pytest.param(EXPERTS, 6, "3:count:3", marks=pytest.mark.long),
        pytest.param(ROUNDED, 3, "0:count:3", marks=pytest.mark.long),
    ],
)
def test_killed_between_the_sums_of_shards_and_the_next_iteration(dataset, settings, servers, accidents):
    settings = (*SHARDED, *settings)
    stock = train(dataset, *settings, ranks=servers)
    survived = train(dataset, *settings, *ON[len(SHARDED) :], ranks=servers, accidents=accidents)
    assert len(re.findall(r"killed by signal 9 \(SIGKILL\)", survived.output)) == accidents.count(":") // 2
    precision = 1e-3 if settings[-2:] == ROUNDED else 1e-6
    assert losses(survived) == pytest.approx(losses(stock), rel=precision)
    assert norms(survived) == pytest.approx(norms(stock), abs=max(0.001, 10 * precision))
    # What tokens that do not occur have of the embeddings; now and then others are added up to a zero.
    zeros = [[float(each) for each in re.findall(r"num zeros: (\S+)", run.output)] for run in (survived, stock)]
    assert zeros[0] == pytest.approx(zeros[1], abs=3)
    assert bool(zeros[0]) == any(each > 1000 for each in zeros[0]) == (COUNTED[0] in settings)


@pytest.mark.long
def test_biases_of_experts_that_tensor_parallelism_does_not_split_count_in_the_norm_as_in_stock(dataset):
    divided = ("--num-experts", 4, "--expert-model-parallel-size", 2, "--expert-tensor-parallel-size", 1)
    settings = (*SHARDED, *SPLIT, *divided, "--moe-token-dispatcher-type", "alltoall")
    stock = train(dataset, *settings, ranks=4, iterations=3)
    ours = train(dataset, *settings, *RETURNING[len(SHARDED) :], ranks=4, iterations=3)
    assert norms(ours) == pytest.approx(norms(stock), abs=0.002)
    assert losses(ours) == nearly(stock)


@pytest.mark.parametrize(
    ("settings", "servers"),
    [
        ((), 3),
        pytest.param(TIED, 6, marks=pytest.mark.long),
        pytest.param(VIRTUAL, 6, marks=pytest.mark.long),
        pytest.param(SPLIT, 6, marks=pytest.mark.long),
        pytest.param(EXPERTS, 6, marks=pytest.mark.long),
    ],
)
def test_killed_when_a_part_of_the_parameters_has_come_in_a_forward_pass(dataset, shared_runs, settings, servers):
    settings, turn = (*SHARDED, "--ddp-bucket-size", 4000, *settings), random.randrange(1, 16)
    stock = trained_by_script(shared_runs, dataset, *settings, ranks=servers).left
    survived = train(dataset, *settings, *ON[len(SHARDED) :], ranks=servers, accidents=f"1:gathered:{turn}")
    assert "killed by signal 9 (SIGKILL)" in survived.output, turn
    assert losses(survived) == nearly(stock), turn
    assert norms(survived) == pytest.approx(norms(stock), abs=0.002), turn
    # In each iteration, on the servers that are left.
    assert survived.output.count("parameters come in a forward pass") > 8, turn


@pytest.mark.parametrize(
    "looks",
    [
        # The next forward pass, in training, which Megatron times.
        ("--timing-log-level", 2),
        pytest.param(("--eval-interval", 1, "--eval-iters", 1), marks=pytest.mark.long),
        pytest.param(("--save-interval", 1), marks=pytest.mark.long),
    ],
)
def test_killed_when_peers_wait_for_what_it_has_stepped(dataset, shared_runs, tmp_path, looks):
    looks += ("--save", tmp_path) if "--save-interval" in looks else ()
    settings = (*SHARDED, "--ddp-bucket-size", 4000, *looks)
    stock = trained_by_script(shared_runs, dataset, *settings, ranks=RANKS).left
    survived = train(dataset, *settings, *ON[len(SHARDED) :], ranks=RANKS, accidents="1:unsent:4")
    assert "killed by signal 9 (SIGKILL)" in survived.output
    assert losses(survived) == nearly(stock)


def test_servers_that_leave_at_the_start_hand_their_shards_on_also_both_holders_of_one(dataset, shared_runs):
    settings = (*SHARDED, "--ddp-bucket-size", 4000)
    stock = trained_by_script(shared_runs, dataset, *settings, ranks=RANKS).left
    ours = train(dataset, *settings, *ON[len(SHARDED) :], "--recycle-dead", "W1_0,W2_0", ranks=RANKS)
    assert losses(ours) == nearly(stock)
    assert re.findall(r"(W\d_\d) leaves: --recycle-dead", ours.output) == ["W1_0", "W2_0"]


@pytest.mark.long
def test_the_norm_of_all_parameters_is_that_of_one_version(dataset):
    """Stock Megatron takes it when other ranks have not given what they have stepped."""
    settings = (*SHARDED, "--log-params-norm")
    found = [
        [float(each) for each in re.findall(r"params norm: (\S+)", train(dataset, *words, ranks=RANKS).output)]
        for words in ([each for each in settings if each != OVERLAPPED], (*settings, *ON[len(SHARDED) :]))
    ]
    assert len(found[0]) == 8
    assert found[1] == pytest.approx(found[0], abs=0.0011)


def test_who_comes_back_holds_its_shards(dataset, stock, tmp_path):
    """The second one to die leaves a shard that nobody holds but the first one, which has come back."""
    job = {"ranks": RANKS, "iterations": LENGTH}
    survived = survive(dataset, tmp_path / "slow", [1, 2], *RETURNING, apart=2, **job)
    assert returns(survived) == ["W1_0", "W2_0"]
    assert losses(survived) == stock


@pytest.mark.long
def test_stock_goes_on_from_a_fully_reshardable_checkpoint_of_tied_embeddings(dataset, tmp_path):
    """Stock Megatron writes wrong values there: its buffer has a gap before the bucket of the embeddings."""
    tied = (*SHARDED, "--pipeline-model-parallel-size", 2)
    whole = nearly(train(dataset, *tied, ranks=2 * RANKS, iterations=6))
    saved = ("--save-interval", 4, "--save", tmp_path, "--exit-interval", 4, "--dist-ckpt-optim-fully-reshardable")
    train(dataset, *tied, *ON[len(SHARDED) :], *saved, ranks=2 * RANKS, iterations=6, watch=kill([(4, 2, 0.1)]))
    onward = losses(train(dataset, *tied, "--load", tmp_path, ranks=2 * RANKS, iterations=6))
    assert onward["trained", 5] == whole["trained", 5]
    # Megatron prints the mean of the first two iterations after a start in the place of the second.
    assert 2 * onward["trained", 6] - onward["trained", 5] == pytest.approx(whole["trained", 6].expected, rel=1e-5)


@pytest.mark.long
def test_neighbours_die_together_as_on_one_host_and_no_shard_is_lost(dataset, shared_runs):
    size, when = ("--global-batch-size", 16), random.uniform(0, 0.2)
    stock = nearly(trained_by_script(shared_runs, dataset, *SHARDED, *size, ranks=4, iterations=LENGTH).left)
    watch = kill([(0, 4, when), (1, 4, when)])
    survived = train(dataset, *RETURNING, *size, "--recycle-restarts", 0, ranks=4, iterations=LENGTH, watch=watch)
    assert set(re.findall(r"(W\d_0) was killed by signal 9", survived.output)) == {"W0_0", "W1_0"}, when
    assert losses(survived) == stock, when


@pytest.mark.parametrize("point", ["count", pytest.param("spread", marks=pytest.mark.long)])
def test_both_holders_of_a_shard_are_killed_with_its_gradient(dataset, stock, tmp_path, point):
    """No other server has its sum: from memory, all make the iteration again; without that, the run is over."""

    def trained(name, *kept):
        # A death that the other one hears of too early keeps it from its own.
        (tmp_path / name).mkdir()
        job = {"ranks": RANKS, "iterations": LENGTH, "told": {"TOGETHER": str(tmp_path / name)}}
        return train(dataset, *ON, *kept, accidents=f"0:{point}:6,2:{point}:6", **job)

    survived = trained("kept", "--recycle-keep-in-memory", "copies=1")
    assert "version 5 of stage 0 is taken from this host's keeper" in survived.output
    assert losses(survived) == stock
    lost = "recycle: no version of the state is held in every stage; go on from the last checkpoint, if there is one"
    with pytest.raises(AssertionError, match=lost):
        trained("lost")


SEQUENCES = ("--context-parallel-size", 2, "--transformer-impl", "transformer_engine", "--num-layers", 1)


@pytest.mark.long
@pytest.mark.parametrize(("divided", "script"), [(EXPERTS, "accident_prone_gpt.py"), (SEQUENCES, "ring_gpt.py")])
def test_shards_of_ranks_that_divide_experts_or_sequences_are_not_lost_either(dataset, tmp_path, divided, script):
    """Three servers of two ranks: the first dies when it has written its part, and another one between two shards."""
    divided = (*SHARDED, *divided)
    stock = nearly(train(dataset, *divided, ranks=2 * RANKS, script=script))
    on = (*divided, *ON[len(SHARDED) :], "--ddp-average-in-collective")
    saved = ("--save-interval", 4, "--save", tmp_path)
    survived = train(dataset, *on, *saved, ranks=2 * RANKS, script=script, accidents="0:written:1,5:adam:18")
    assert set(re.findall(r"(W\d_\d has lost rank \d), which was killed", survived.output)) == {
        "W0_0 has lost rank 0",
        "W2_0 has lost rank 1",
    }
    assert losses(survived) == stock
    again = ("--load", tmp_path, "--ckpt-step", 4, "--exit-interval", 5)
    resumed = losses(train(dataset, *divided, *again, ranks=2 * RANKS, script=script))
    assert resumed["trained", 5] == stock["trained", 5]
