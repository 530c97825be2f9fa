"""Under the flag a user's script goes on when its processes are killed, and prints what it prints without that."""

import random
import re
import sys
from contextlib import nullcontext
from inspect import signature
from uuid import uuid4

import pytest
import torch
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from torch.utils._pytree import tree_leaves

from harness.etcd import etcd
from harness.etcd import missing as missing_etcd
from harness.examples import QUICK, paper_job
from harness.flag_runs import (
    FLAGGED,
    VARIABLES,
    deaths,
    kill,
    kill_in_turn,
    launch,
    losses,
    nearly,
    needs_training,
    printed,
    returns,
    survive,
    train,
    words_of,
)
from harness.forked import TRAINING_CODE
from harness.ports import free_port
from harness.started import Started, by_hand, wait_until
from harness.undisturbed import trained_by_script
from recycle.plan.mode import Mode
from recycle.planner.catalogue import make_catalogue
from recycle.record.history import history_of
from recycle.record.reading import load_lines
from recycle.record.recording import EndedLine
from recycle.record.totals import totals_of
from recycle.view.watching import WatchedRun

# Every test starts processes that import Megatron, which takes its time where others are at work as well.
pytestmark = [needs_training, pytest.mark.timeout(1200)]

RETURNING = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms")
ON = (*RETURNING, "--recycle-restarts", 0)
TO_FILE = ("--save-interval", 4, "--ckpt-format", "torch", "--save")
LENGTH = 12
FROM_FILE = ("--ckpt-format", "torch", "--load")
UNHEEDED = ("--overlap-moe-expert-parallel-comm", "--ep-overlap-early-attn-memory-release", "--delay-wgrad-compute")
UNHEEDED += ("--defer-embedding-wgrad-compute",)
TENSORS = ("--tensor-model-parallel-size", 2)
DIVIDED_EXPERTS = ("--num-experts", 4, "--expert-model-parallel-size", 2)
DIVIDED_EXPERTS += ("--moe-token-dispatcher-type", "alltoall", "--disable-bias-linear")
IGNORES_RAMP_UP = "step_batch_size_schedule" in signature(init_num_microbatches_calculator).parameters


@pytest.fixture(scope="module")
def stock(shared_runs, dataset):
    return nearly(trained_by_script(shared_runs, dataset, iterations=LENGTH).left)


def require_recorded(printed, folder, returned):
    """The recordings say what was printed, and who died and came back in turn."""
    recorded = {total.step + 1: f"{total.loss:.6E}" for total in totals_of(load_lines(folder)) if not total.held_out}
    expected = {number: loss for number, (loss, _) in printed.trained.items()}
    # What is printed there is the mean of the first two.
    assert {**recorded, 2: expected[2]} == expected
    held_out = {
        f"iteration {total.step}": f"{total.loss:.6E}" for total in totals_of(load_lines(folder)) if total.held_out
    }
    assert held_out.items() <= printed.evaluated.items() | {(each, held_out[each]) for each in list(held_out)[-1:]}
    history = history_of(load_lines(folder))
    assert [each.server for each in history.deaths] == returned
    assert [server for change in history.changes for server, _ in change.joined] == returned
    assert all(change.recovery for change in history.changes)


def test_killed_at_any_moment_nothing_changes_and_the_checkpoint_loads_in_stock(dataset, stock, tmp_path):
    moments = [(victim, after, random.uniform(0, 0.2)) for victim, after in ((3, 2), (0, 6))]
    saved = (*TO_FILE, tmp_path)
    survived = train(dataset, *ON, *saved, iterations=LENGTH, watch=kill(moments))
    assert len(deaths(survived)) == 2, moments
    for left in ("stage 1: if W0_1", "stage 0: if W1_0"):
        assert survived.output.count(f"one live server is left of {left} dies, the run ends") == 1, moments
    assert losses(survived) == stock, moments
    resumed = losses(train(dataset, *FROM_FILE, tmp_path, "--ckpt-step", 8, iterations=LENGTH))
    # Megatron prints the mean of the first two iterations after a start in the place of the second.
    del resumed["trained", 10]
    assert resumed == {key: stock[key] for key in resumed}
    assert ("trained", LENGTH) in resumed


def test_a_worker_that_torchrun_has_started_is_killed_and_nothing_changes(dataset):
    settings, job = ("--pipeline-model-parallel-size", 1), {"ranks": 2, "iterations": 6}
    stock = train(dataset, *settings, **job)
    moment = (1, 3, random.uniform(0, 0.2))
    survived = train(dataset, *settings, *ON, watch=kill([moment]), launcher=launch, **job)
    assert deaths(survived) == ["W1_0"], moment
    assert losses(survived) == nearly(stock), moment


@pytest.mark.parametrize(
    "accidents",
    [
        # The norm of the third step, which the same server's peers have taken already or wait for.
        pytest.param("3:norm:3", marks=pytest.mark.long),
        # The second micro-batch of the first evaluation, and then the first server in a forward pass.
        "2:evaluation:2,1:forward:30",
        # The first rank, in the middle of the file that it writes: its peer has to write it anew.
        "0:save:1,3:norm:6",
    ],
)
def test_killed_in_the_middle_of_something(dataset, stock, tmp_path, accidents):
    survived = train(dataset, *ON, *TO_FILE, tmp_path, iterations=LENGTH, accidents=accidents)
    assert len(deaths(survived)) == accidents.count(":") // 2
    assert losses(survived) == stock
    resumed = losses(train(dataset, *FROM_FILE, tmp_path, "--ckpt-step", 4, "--exit-interval", 5, iterations=LENGTH))
    assert resumed["trained", 5] == stock["trained", 5]


def test_what_is_decided_once_or_divided_by_all_servers_is_right_after_a_death(dataset, stock, tmp_path):
    tuned = ("--sft", "--eval-interval", 4, "--eval-iters", 1)
    profiled = ("--profile", "--use-pytorch-profiler", "--profile-ranks", 0, "--profile-step-start", 1)
    profiled += ("--profile-step-end", 2, "--tensorboard-dir", tmp_path)
    # A rank that speaks for the first one has no profiler.
    survived = train(dataset, *ON, *tuned, *profiled, iterations=LENGTH, watch=kill([(0, 2, 0), (3, 2, 0)]))
    assert sorted(deaths(survived)) == ["W0_0", "W1_1"]
    assert losses(survived) == stock


def test_a_rank_whose_script_ends_while_the_others_train_counts_as_dead(dataset, stock, tmp_path):
    told = {"LEAVES": "1:5", "LEFT": str(tmp_path / "left")}
    survived = train(dataset, *ON, iterations=LENGTH, script="leaving_gpt.py", told=told, patience=300)
    assert "recycle: the script of W1_0 has ended, and the others train on: it counts as dead" in survived.output
    assert losses(survived) == stock


@pytest.mark.parametrize(
    "unheard",
    [
        # Its stage has another server that has heard, and which tells it.
        "1:unheard:3",
        # Nobody else is left of this stage, so that the iteration is made again.
        pytest.param("2:unheard:3", marks=pytest.mark.long),
    ],
)
def test_killed_between_the_rounds_of_a_vote_that_some_have_not_heard(dataset, stock, unheard):
    survived = train(dataset, *ON, iterations=LENGTH, accidents=f"3:voted:3,{unheard}", patience=300)
    assert deaths(survived) == ["W1_1"]
    assert losses(survived) == stock


@pytest.mark.parametrize(
    ("format", "point", "parallel"),
    [("torch", "save", ()), pytest.param("torch_dist", "written", ("--sequence-parallel",), marks=pytest.mark.long)],
)
def test_a_server_of_two_ranks_dies_with_one_of_them_and_nothing_changes(
    dataset, stock, tmp_path, format, point, parallel
):
    """At any moment a rank of the last stage, and the first rank in the middle of the second checkpoint."""
    victim, when = random.choice((4, 5, 6, 7)), random.uniform(0, 0.2)
    parallel, saved = ("--tensor-model-parallel-size", 2, *parallel), ("--ckpt-format", format)
    survived = train(
        *(dataset, *parallel, *ON, *saved, "--save-interval", 4, "--save", tmp_path),
        ranks=8,
        iterations=LENGTH,
        accidents=f"0:{point}:2",
        watch=kill([(victim, 6, when)]),
    )
    dead = set(re.findall(r"(W\d_\d) has lost rank (\d), which was killed by signal 9", survived.output))
    assert dead == {("W0_0", "0"), (f"W{(victim - 4) // 2}_1", str(victim % 2))}, when
    # The first parameters of all its ranks together are those of a server of one rank.
    expected = {key: pytest.approx(value.expected, rel=1e-5) for key, value in stock.items()}
    assert losses(survived) == expected, (victim, when)
    again = (*parallel, *saved, "--load", tmp_path, "--ckpt-step", 8, "--exit-interval", 9)
    resumed = losses(train(dataset, *again, iterations=LENGTH))
    assert resumed["trained", 9] == expected["trained", 9]


@pytest.mark.long
def test_ranks_that_split_sequences_die_together_and_nothing_changes(dataset, stock):
    """Keys and values go round in a ring, by the sends and receives of an attention that is the script's own."""
    split = ("--context-parallel-size", 2, "--transformer-impl", "transformer_engine")
    victim, when = random.choice((4, 5, 6, 7)), random.uniform(0, 0.2)
    survived = train(
        *(dataset, *split, *ON), ranks=8, iterations=LENGTH, script="ring_gpt.py", watch=kill([(victim, 5, when)])
    )
    assert f"W{(victim - 4) // 2}_1 has lost rank {victim % 2}, which was killed by signal 9" in survived.output, when
    assert losses(survived) == stock, (victim, when)


@pytest.mark.long
def test_a_group_of_experts_dies_with_one_of_its_ranks_and_nothing_changes(dataset, tmp_path):
    """Its servers are two of Megatron's pipelines each; the first rank dies in the checkpoint that all write."""
    divided = (*DIVIDED_EXPERTS, "--moe-router-load-balancing-type", "seq_aux_loss", "--moe-aux-loss-coeff", 1e-2)
    divided += ("--num-layers", 2)
    stock = nearly(train(dataset, *divided, ranks=8))
    victim, when = random.choice((4, 5, 6, 7)), random.uniform(0, 0.2)
    survived = train(
        *(dataset, *divided, *ON, "--save-interval", 4, "--save", tmp_path),
        *UNHEEDED,
        ranks=8,
        accidents="0:written:1",
        watch=kill([(victim, 5, when)]),
    )
    dead = set(re.findall(r"(W\d_\d) has lost rank (\d), which was killed by signal 9", survived.output))
    assert dead == {("W0_0", "0"), (f"W{(victim - 4) // 2}_1", str(victim % 2))}, when
    assert losses(survived) == stock, (victim, when)
    assert [each for each in UNHEEDED if f"{each} is left out" not in survived.output] == []
    again = (*divided, "--load", tmp_path, "--ckpt-step", 4, "--exit-interval", 5)
    resumed = losses(train(dataset, *again))
    assert resumed["trained", 5] == stock["trained", 5]


@pytest.mark.long
def test_experts_that_are_split_as_well_as_divided_die_together_and_nothing_changes(dataset):
    """Stock Megatron cannot gather their tokens over gloo, so the same job without a death is what is compared with."""
    split = ("--num-experts", 4, "--expert-model-parallel-size", 2, "--tensor-model-parallel-size", 2)
    split += ("--pipeline-model-parallel-size", 1, "--sequence-parallel", "--moe-token-dispatcher-type", "alltoall")
    # A second layer has its tokens sent around in the same way, and most of the time goes into that.
    split += ("--expert-tensor-parallel-size", 2, "--disable-bias-linear", "--num-layers", 1, *ON)
    undisturbed = nearly(train(dataset, *split, ranks=8, iterations=5))
    victim, when = random.randrange(8), random.uniform(0, 0.2)
    survived = train(dataset, *split, ranks=8, iterations=5, watch=kill([(victim, 2, when)]))
    assert f"W{victim // 4}_0 has lost rank {victim % 4}, which was killed by signal 9" in survived.output, when
    assert losses(survived) == undisturbed, (victim, when)


@pytest.mark.long
@pytest.mark.parametrize(
    ("virtual", "sharded"),
    [
        (("--num-layers-per-virtual-pipeline-stage", 1), ()),
        (
            ("--num-virtual-stages-per-pipeline-rank", 2),
            ("--use-distributed-optimizer", "--dist-ckpt-optim-fully-reshardable"),
        ),
    ],
)
def test_with_virtual_stages_a_death_changes_nothing(dataset, tmp_path, virtual, sharded):
    """They go on from what stock Megatron has saved without them."""
    settings = ("--num-layers", 4, *sharded)
    train(dataset, *settings, "--save", tmp_path, "--save-interval", 4, "--exit-interval", 4, iterations=LENGTH)
    settings += ("--load", tmp_path)
    stock = train(dataset, *settings, iterations=LENGTH)
    victim, when = random.randrange(4), random.uniform(0, 0.2)
    survived = train(dataset, *settings, *virtual, *ON, iterations=LENGTH, watch=kill([(victim, 7, when)]))
    assert deaths(survived) == [f"W{victim % 2}_{victim // 2}"], when
    assert losses(survived) == nearly(stock), (victim, when)
    assert LENGTH in stock.trained


@pytest.mark.long
def test_killed_in_a_save_to_which_all_contribute_the_checkpoint_loads_in_stock_with_half_the_ranks(
    dataset, stock, tmp_path
):
    """The first rank dies when it has made the checkpoint whole, and the last one when that is made again."""
    saved = ("--save-interval", 4, "--async-save", "--use-persistent-ckpt-worker", "--save", tmp_path)
    # What ranks wrote the last time is another part of a checkpoint than what those that are left write now.
    saved += ("--ckpt-assume-constant-structure",)
    saved += ("--non-persistent-save-interval", 6, "--non-persistent-ckpt-type", "global")
    survived = train(dataset, *ON, *saved, iterations=LENGTH, accidents="0:tracker:1,3:written:2")
    assert len(deaths(survived)) == 2
    assert losses(survived) == stock
    assert "--async-save is left out" in survived.output
    assert list(tmp_path.glob("non_persistent/*6"))
    for step in (4, 8):
        # Written in the middle of which two servers died, and with these dead.
        arguments = ("--load", tmp_path, "--ckpt-step", step, "--exit-interval", step + 1)
        resumed = losses(train(dataset, *arguments, ranks=2, iterations=LENGTH))
        assert resumed["trained", step + 1] == stock["trained", step + 1]


@pytest.mark.long
def test_who_was_killed_comes_back_and_is_a_full_member(dataset, tmp_path):
    """The second one to die is the only other server of its stage, so that what it held must have come over."""
    # So long a run with the usual learning rate has a spike, which makes much of how sums were rounded before.
    long, whole, calm = 40, 32, ("--lr", 2e-3)
    stock = nearly(train(dataset, *calm, iterations=long))
    saved = (*calm, "--save-interval", whole, "--save", tmp_path, "--recycle-record", tmp_path / "run")
    # All would wait for each other in the second iteration of each.
    saved += ("--distributed-timeout-seconds-after-init", 600)
    # As many as a script has that does not say; they inherit the connections of the rank that forks them.
    saved += ("--num-workers", 2)
    survived = survive(dataset, tmp_path / "slow", [3, 2, 0], *RETURNING, *saved, iterations=long)
    assert returns(survived) == ["W1_1", "W0_1", "W0_0"]
    assert losses(survived) == stock
    require_recorded(survived, tmp_path / "run", ["W1_1", "W0_1", "W0_0"])
    again = (*calm, *ON, "--use-checkpoint-args", "--load", tmp_path, "--ckpt-step", whole)
    onward = train(dataset, *again, iterations=long)
    assert "the death of a server ends this run" not in onward.output
    resumed = losses(onward)
    # See above.
    del resumed["trained", whole + 2]
    assert resumed == {key: stock[key] for key in resumed}
    assert ("trained", long) in resumed


@pytest.mark.long
def test_a_death_is_repeated_to_the_bit_from_the_checkpoint_before_it(dataset, tmp_path):
    """By the same catalogue, the same server dies in the same iteration, at another moment of it, or is left out."""
    job = paper_job(pipelines=4, stages=2, micro_batches=2)
    make_catalogue(tmp_path / "plans.zip", job, Mode(optimizer="global"), 1, QUICK, "lowered", lambda *_: None)

    def trained(name, accident, *arguments):
        """What the last checkpoint of each stage holds."""
        folder = tmp_path / name
        settings = (*ON, "--recycle-catalogue", tmp_path / "plans.zip", *TO_FILE, folder, *arguments)
        survived = train(dataset, *settings, ranks=8, iterations=LENGTH, accidents=accident)
        assert deaths(survived) == ["W1_1"] * bool(accident)
        files = sorted(folder.glob(f"iter_{LENGTH:07}/*/*.pt"))
        assert len(files) == 2
        states = [torch.load(each, weights_only=False) for each in files]
        leaves = tree_leaves([(each["model"], each["optimizer"]) for each in states])
        return [each for each in leaves if isinstance(each, torch.Tensor)]

    # In the sixth iteration, which has two of this server's forward passes.
    first = trained("first", "5:forward:11")
    (tmp_path / "first" / "latest_checkpointed_iteration.txt").write_text("4")
    load = (*FROM_FILE, tmp_path / "first")
    again = trained("again", "5:forward:4", *load)
    assert len(first) == len(again) > 100
    assert all(map(torch.equal, first, again))
    fifth, left_out = trained("fifth", "5:forward:1", *load), trained("left", "", *load, "--recycle-dead", "W1_1")
    assert not all(map(torch.equal, first, fifth))
    assert all(map(torch.equal, fifth, left_out))


def test_a_catalogue_that_is_made_anew_during_a_run_is_none_of_its_own(dataset, stock, tmp_path):
    """A server that comes back leads by the plans with which it was started."""
    path, other, slow = tmp_path / "plans.zip", tmp_path / "other.zip", tmp_path / "slow"
    for target, mode in ((path, Mode(optimizer="global")), (other, Mode("fused", "global"))):
        job = paper_job(pipelines=2, stages=2, micro_batches=4)
        make_catalogue(target, job, mode, 1, QUICK, "lowered", lambda *_: None)
    kill_next = kill_in_turn([0, 3], slow, apart=1)

    def watch(launcher, output):
        if other.exists() and "iteration        1/" in output:
            other.replace(path)
        kill_next(launcher, output)

    settings = (*RETURNING, "--recycle-catalogue", path)
    paced = {"script": "paced_gpt.py", "told": {"PACE": str(slow)}}
    survived = train(dataset, *settings, iterations=LENGTH, watch=watch, **paced)
    assert deaths(survived) == returns(survived) == ["W0_0", "W1_1"]
    assert losses(survived) == stock


@pytest.mark.long
def test_with_dropout_and_cyclic_data_and_stages_of_unequal_size_deaths_change_nothing(dataset, tmp_path):
    """By a plan that was made ahead of time, and by one that the catalogue has not."""
    settings = ("--num-layers", 4, "--hidden-dropout", 0.1, "--attention-dropout", 0.1, "--dataloader-type", "cyclic")
    settings += ("--pipeline-model-parallel-layout", "Et|tttL", "--recycle-catalogue", tmp_path / "plans.zip")
    job = paper_job(pipelines=2, stages=2, micro_batches=4)
    make_catalogue(tmp_path / "plans.zip", job, Mode(optimizer="global"), 1, QUICK, "lowered", lambda *_: None)
    whole = train(dataset, *settings, *ON, iterations=LENGTH)
    survived = train(dataset, *settings, *ON, iterations=LENGTH, watch=kill([(2, 2, 0.1), (1, 4, 0.1)]))
    assert deaths(survived) == ["W0_1", "W1_0"]
    assert losses(survived) == nearly(whole)


@pytest.mark.long
@pytest.mark.skipif(IGNORES_RAMP_UP, reason="this release ignores --rampup-batch-size; what took its place is refused")
def test_where_batches_grow_while_a_server_is_dead_and_when_it_is_back_nothing_changes(dataset, tmp_path):
    """From 2 to 8 micro-batches per pipeline; Megatron makes a checkpoint whenever there are more."""
    growing = ("--micro-batch-size", 1, "--rampup-batch-size", 4, 2, 240, "--train-samples", 400, "--lr", 2e-3)
    growing += ("--untie-embeddings-and-output-weights", "--qk-layernorm", "--log-num-zeros-in-grad")
    growing += ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", 1)
    stock = nearly(train(dataset, *growing, iterations=None))
    saved, paced = (*TO_FILE, tmp_path, "--save-interval", 100), {"apart": 8, "told": {"PACE_SECONDS": "3"}}
    survived = survive(dataset, tmp_path / "slow", [3], *growing, *RETURNING, *saved, iterations=None, **paced)
    assert returns(survived) == ["W1_1"]
    assert losses(survived) == stock
    assert sorted(int(each.name[5:]) for each in tmp_path.glob("iter_*")) == [10, 17, 22, 26, 30, 33, 42]


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        ("--fp16", "--loss-scale", 1024, "--optimizer", "sgd", "--lr", 0.5, "--iterations-to-skip", 4),
        ("--bf16", "--grad-reduce-in-bf16", "--calculate-per-token-loss", "--timing-log-level", 2),
    ],
)
def test_in_numbers_of_two_bytes_a_death_changes_how_sums_are_rounded_and_nothing_else(dataset, settings):
    stock = losses(train(dataset, *settings, iterations=6))
    victim, when = random.randrange(4), random.uniform(0, 0.2)
    survived = train(dataset, *settings, *ON, iterations=6, watch=kill([(victim, 2, when)]))
    assert deaths(survived) == [f"W{victim % 2}_{victim // 2}"], when
    assert losses(survived) == pytest.approx(stock, rel=1e-3), (victim, when)
    assert survived.output.count("--accumulate-allreduce-grads-in-fp32 prevents that") == settings.count("--fp16")
    goes_on = survived.output.partition("training goes on with 3 servers")[2]
    for name in ("forward-backward", "forward-compute", "backward-compute", "batch-generator", "optimizer"):
        assert (f"{name} ...." in goes_on) == ("--timing-log-level" in settings)


def test_without_a_server_of_a_stage_the_run_ends_with_one_line(dataset):
    with pytest.raises(AssertionError) as ended:
        train(dataset, *ON, accidents="2:forward:9,3:norm:5")
    lines = [line for line in str(ended.value).splitlines() if line.startswith("recycle: no live server")]
    assert len(lines) == 1
    assert lines[0].startswith("recycle: no live server of stage 1 is left")


@pytest.mark.long
def test_all_servers_of_a_stage_are_killed_and_the_job_goes_on_from_memory(dataset, stock, tmp_path):
    """The others wait for one of them, and go back a step, out of what comes after it: a line, or an evaluation.

    First they die as soon as keepers have the version of a new view, and another server has not heard by then what all
    have told each other before it.
    """
    kept = (*RETURNING, "--recycle-keep-in-memory", "copies=1")
    watch = kill([(2, 8, 0), (3, 8, 0)])
    told = {"MARKS": str(tmp_path)}
    survived = train(dataset, *kept, iterations=LENGTH, script="late_gpt.py", told=told, watch=watch)
    assert "no live server of stage 1 is left: waiting for a replacement" in survived.output
    for version in ("3", r"([7-9]|1\d)"):
        assert re.search(rf"version {version} of stage 1 is taken from this host's keeper", survived.output)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["kept-2", "kept-3", "late-0", "norm-1"]
    assert losses(survived) == stock


@pytest.mark.long
def test_all_servers_of_a_stage_of_experts_are_killed_while_batches_grow_and_nothing_changes(dataset):
    """What is made again has as large a batch as it had, and what experts report counts once."""
    settings = ("--num-layers", 4, "--num-layers-per-virtual-pipeline-stage", 1)
    settings += ("--num-experts", 4, "--disable-bias-linear")
    settings += ("--moe-router-load-balancing-type", "seq_aux_loss", "--moe-aux-loss-coeff", 1e-2)
    settings += ("--micro-batch-size", 1, "--rampup-batch-size", 4, 4, 48, "--train-samples", 128)
    settings += ("--log-num-zeros-in-grad", *RETURNING)
    whole = train(dataset, *settings, iterations=None)
    last, when = random.choice((3, 4, 5, 6)), random.uniform(0, 0.3)
    watch = kill([(2, last, when), (3, last, when)])
    survived = train(dataset, *settings, "--recycle-keep-in-memory", "copies=1", iterations=None, watch=watch)
    assert re.search(r"version ([2-9]|1\d) of stage 1 is taken from this host's", survived.output), (last, when)
    # Where two experts are nearly as good for a token, the last digit of a parameter decides between them.
    assert losses(survived) == pytest.approx(losses(whole), rel=1e-4), (last, when)
    assert balances(survived) == pytest.approx(balances(whole), rel=1e-4), (last, when)


def balances(printed):
    """What experts have reported, by iteration; a line that comes twice says the same."""
    lines = re.findall(r"iteration +(\d+)/.*? (\w*load_balancing_loss: .*)", printed.output)
    found = {number: re.findall(r"load_balancing_loss: (\S+)", line) for number, line in lines}
    return {(number, place): float(each) for number, line in found.items() for place, each in enumerate(line)}


@pytest.mark.long
def test_a_stage_of_ranks_that_hold_shards_is_killed_and_the_job_goes_on_from_memory(dataset, stock):
    """Whoever goes back steps its shards again together with those who are back with all their ranks."""
    kept = (*RETURNING, "--recycle-keep-in-memory", "copies=1")
    split = ("--tensor-model-parallel-size", 2, "--use-distributed-optimizer")
    victims, when = (random.choice((4, 5)), random.choice((6, 7))), random.uniform(0, 0.2)
    watch = kill([(each, 4, when) for each in victims])
    survived = train(dataset, *split, *kept, ranks=8, iterations=LENGTH, watch=watch)
    assert "no live server of stage 1 is left: waiting for a replacement" in survived.output, (victims, when)
    assert re.search(r"version ([3-9]|1\d) of stage 1 is taken from this host's", survived.output), (victims, when)
    # The first parameters of all its ranks together are those of a server of one rank.
    expected = {key: pytest.approx(value.expected, rel=1e-5) for key, value in stock.items()}
    assert losses(survived) == expected, (victims, when)


def test_all_servers_are_killed_at_once_and_the_next_start_goes_on_from_memory(dataset, stock, tmp_path):
    kept = ("--recycle-keep-in-memory", "copies=1", "--recycle-record", tmp_path / "run")
    held = {"script": "held_gpt.py", "told": {"HELD": str(tmp_path)}}
    (tmp_path / "5").touch()
    with pytest.raises(AssertionError) as ended:
        train(dataset, *ON, *kept, iterations=LENGTH, watch=kill([(rank, 5, 0) for rank in range(4)]), **held)
    assert "recycle: all servers are dead; the memory of hosts has the state for 10 minutes" in str(ended.value)
    with pytest.raises(AssertionError, match="a start with --hidden-size 32, and this one is with --hidden-size 64"):
        train(dataset, *ON, *kept, "--recycle-resume", "--hidden-size", 64, iterations=LENGTH)
    survived = train(dataset, *ON, *kept, "--recycle-resume", iterations=LENGTH)
    assert re.search(r"version [45] of stage 0 is taken from this host's keeper", survived.output)
    run = WatchedRun(tmp_path / "run")
    run.look()
    assert (run.state().ended, run.state().iterations) == (True, LENGTH)
    # A killed process has not said that it ends.
    said = [line.name for line in load_lines(tmp_path / "run") if isinstance(line, EndedLine)]
    assert said == ["W0_0", "W0_1", "W1_0", "W1_1"]
    found = losses(survived)
    assert min(number for kind, number in found if kind == "trained") in (5, 6)
    assert found == {key: stock[key] for key in found}
    assert ("trained", LENGTH) in found
    # Nothing is left of a run that came to its end.
    with pytest.raises(
        AssertionError, match="--recycle-resume: the memory of 1 host has no version that all stages have"
    ):
        train(dataset, *ON, *kept, "--recycle-resume", iterations=LENGTH)


WITH_ETCD = (pytest.mark.long, pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd()))
KEPT = ("--recycle-keep-in-memory", "copies=1", "--recycle-record", "run")


@pytest.mark.parametrize(
    ("lost", "stores", "divided", "more"),
    [
        pytest.param((4, 5), nullcontext, TENSORS, (), marks=pytest.mark.long),
        # The first process served the store.
        pytest.param((0, 1), etcd, TENSORS, (), marks=WITH_ETCD),
        # All servers of the last stage, whose state is left with the host's keeper.
        pytest.param((4, 5, 6, 7), nullcontext, TENSORS, KEPT, marks=pytest.mark.long),
        pytest.param((4, 5), nullcontext, DIVIDED_EXPERTS, (), marks=pytest.mark.long),
    ],
)
def test_servers_of_several_ranks_whose_host_is_lost_come_back_on_another_one(
    dataset, shared_runs, tmp_path, lost, stores, divided, more
):
    """Its agents are killed with their workers, and the same commands take their place, where another one may not."""
    port, slow, secret = free_port(), tmp_path / "slow", tmp_path / "secret"
    secret.write_text(uuid4().hex)
    secret.chmod(0o600)
    more = ["--recycle-token-file", secret, *(tmp_path / each if each == "run" else each for each in more)]
    words = words_of(dataset, *divided, *ON, *more, iterations=LENGTH, script="paced_gpt.py")
    with stores() as served:
        chosen = VARIABLES | {"PACE": str(slow)} | ({"RECYCLE_STORE": served.url} if served else {})

        def begin(rank, *others):
            variables = chosen | by_hand(rank, 8, "127.0.0.1", port)
            return Started([sys.executable, *FLAGGED, *words, *others], None, variables, TRAINING_CODE)

        def said():
            return "".join(each.output for each in before + ranks)

        ranks, before = [begin(rank) for rank in range(8)], []
        try:
            wait_until(lambda: " iteration        3/" in said(), 600)
            slow.touch()
            before = [ranks[each] for each in lost]
            for each in before:
                each.kill()
            before.append(begin(lost[0], "--clip-grad", "0.1"))
            assert before[-1].ended(600) == 2, said()[-8000:]
            assert "comes back with --clip-grad 0.1, and the run was started without --clip-grad" in before[-1].output
            for each in lost:
                ranks[each] = begin(each)
            back = re.compile(r"with 4 servers, .* among them again")
            wait_until(lambda: back.search(said()) or all(each.process.poll() is not None for each in ranks), 600)
            # Of two lost servers, either may be the last.
            assert back.search(said()), said()[-8000:]
            slow.unlink()
            assert [rank.ended(600) for rank in ranks] == [0] * 8, said()[-8000:]
        finally:
            for rank in ranks:
                rank.kill()
    alike = {} if divided == TENSORS else {"ranks": 8}
    stock = trained_by_script(shared_runs, dataset, *(divided if alike else ()), iterations=LENGTH, **alike).left
    assert losses(printed(said())) == {key: pytest.approx(value, rel=1e-5) for key, value in losses(stock).items()}
