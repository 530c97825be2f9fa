"""Where stages step Megatron's optimizer on their own, the same is trained: to the bit, and whoever is killed."""

import random
import re
from argparse import Namespace

import pytest
import torch

from harness.flag_runs import kill, kill_in_turn, needs_training, train
from harness.undisturbed import trained_by_script
from recycle.megatron.flag.command.refusals import not_own

ON = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms", "--hidden-dropout", 0.1)
TO_FILE = ("--save-interval", 12, "--ckpt-format", "torch", "--save")
SELDOM = ("--log-interval", 100)
EXACT = (*ON, "--recycle-exact")
LENGTH = 12
ONE_STAGE = ("--pipeline-model-parallel-size", 1)
DIVIDED = (*ONE_STAGE, "--tensor-model-parallel-size", 2, "--sequence-parallel", "--qk-layernorm")
"""Servers of two ranks, each of which has a part of the gradients of norms."""


def trained(folder):
    """Parameters and the optimizer's state in a checkpoint, by file and place in it."""
    found = {}
    for path in sorted(folder.rglob("*.pt")):
        content = torch.load(path, weights_only=False)
        for part in ("model", "optimizer"):
            found |= tensors_in(content[part], f"{path.relative_to(folder)}/{part}")
    return found


def tensors_in(value, name):
    if isinstance(value, torch.Tensor):
        return {name: value}
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {key: each for place, child in children for key, each in tensors_in(child, f"{name}/{place}").items()}


def require_same(folder, other):
    ours, theirs = trained(folder), trained(other)
    assert len(ours) > 100
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@needs_training
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "divided", [pytest.param((), id="stages"), pytest.param(DIVIDED, marks=pytest.mark.long, id="ranks")]
)
def test_stages_that_step_on_their_own_train_what_megatron_trains_to_the_bit(dataset, tmp_path, divided):
    settings = (*ON, *divided, *SELDOM, "--clip-grad", 0, "--lr-decay-style", "linear", "--lr-warmup-iters", 3)
    together = train(dataset, *settings, *TO_FILE, tmp_path / "together", iterations=LENGTH)
    alone = train(dataset, *settings, *TO_FILE, tmp_path / "alone", "--recycle-stagger", iterations=LENGTH)
    assert alone.evaluated == together.evaluated
    require_same(tmp_path / "alone", tmp_path / "together")


@pytest.fixture(scope="module")
def whole(shared_runs, dataset):
    """What is trained with exact sums where nobody is killed."""
    return trained_by_script(shared_runs, dataset, *EXACT, *SELDOM, saves=TO_FILE, iterations=LENGTH).folder


@pytest.mark.long
@needs_training
@pytest.mark.timeout(1200)
def test_with_exact_sums_servers_that_leave_at_the_start_change_no_bit(dataset, whole, tmp_path):
    settings = (*EXACT, *SELDOM, "--recycle-dead", "W1_1", *TO_FILE, tmp_path)
    assert "W1_1 leaves: --recycle-dead" in train(dataset, *settings, iterations=LENGTH).output
    require_same(tmp_path, whole)


@pytest.mark.long
@needs_training
@pytest.mark.timeout(1200)
def test_with_exact_sums_neither_deaths_nor_waiting_change_a_bit(dataset, whole, tmp_path):
    """The norm of the first gradients is above the limit, so that steps are taken back as well."""
    victims = random.choice([(0, 3), (1, 2), (3, 1), (2, 0)])
    moments = [(victim, 1, random.uniform(0, 0.6)) for victim in victims]
    survived = train(
        dataset,
        *(*EXACT, "--recycle-stagger", "--recycle-restarts", 0, "--log-interval", 3, *TO_FILE, tmp_path / "survived"),
        iterations=LENGTH,
        watch=kill(moments),
    )
    assert "training goes on with 2 servers" in survived.output, moments
    require_same(tmp_path / "survived", whole)


@pytest.mark.long
@needs_training
@pytest.mark.timeout(1200)
def test_who_comes_back_steps_on_its_own_like_all_others_to_the_bit(dataset, whole, tmp_path):
    """The second one to die is the only other server of its stage, so that what it held must have come over.

    Then both are killed at once, and keepers have what they held.
    """
    slow = tmp_path / "slow"
    when = random.uniform(0, 0.3)
    one, all_of_the_stage = kill_in_turn([3, 2], slow, apart=1), kill([(2, 0, when), (3, 0, when)])

    def watch(started, output):
        one(started, output)
        if output.count(" among them again") >= 2:
            all_of_the_stage(started, output)

    kept = ("--recycle-keep-in-memory", "copies=1")
    survived = train(
        dataset,
        *(*EXACT, "--recycle-stagger", *kept, "--log-interval", 3, *TO_FILE, tmp_path / "survived"),
        iterations=LENGTH,
        script="paced_gpt.py",
        told={"PACE": str(slow)},
        watch=watch,
    )
    assert "with 4 servers, W1_1 among them again" in survived.output
    assert "W0_1 was killed by signal 9 (SIGKILL)" in survived.output
    assert "no live server of stage 1 is left: waiting for a replacement" in survived.output, when
    assert re.search(r"version \d+ of stage 1 is taken from this host's keeper", survived.output), when
    require_same(tmp_path / "survived", whole)


@pytest.mark.long
@needs_training
@pytest.mark.timeout(1200)
def test_stages_wait_for_each_other_only_where_something_is_looked_at(dataset):
    settings = (*ON, "--log-interval", 5, "--eval-interval", 100)
    waited = []
    for further in ((), ("--recycle-stagger",)):
        printed = train(dataset, *settings, *further, iterations=LENGTH, script="counting_gpt.py")
        (versions,) = re.findall(r"waited in versions ([\d ]+)", printed.output)
        waited.append(set(map(int, versions.split())))
    together, alone = waited
    assert together >= set(range(1, LENGTH + 1))
    assert alone <= {1, 5, 10, LENGTH}


@pytest.mark.parametrize(
    ("settings", "exact", "message"),
    [
        ({"fp16": True}, False, "fp16 is on: .* use --bf16"),
        ({"optimizer": "muon"}, False, "optimizer is muon: .* use adam or sgd"),
        ({"grad_reduce_in_bf16": True}, False, "grad_reduce_in_bf16 is on: .* leave it out"),
        ({"save": "x", "ckpt_format": "torch_dist"}, True, "ckpt_format is torch_dist: .* --ckpt-format torch"),
    ],
)
def test_what_cannot_be_stepped_by_a_stage_is_named(settings, exact, message):
    good = {"fp16": False, "optimizer": "adam", "save": "x", "ckpt_format": "torch"}
    assert not list(not_own(vars(Namespace(**good)).get, exact=True))
    (problem,) = not_own(vars(Namespace(**good | settings)).get, exact)
    assert re.match(message, str(problem))


def test_without_exact_sums_every_format_of_checkpoints_will_do():
    assert not list(not_own({"save": "x", "ckpt_format": "torch_dist"}.get, exact=False))
    assert not list(not_own({"ckpt_format": "torch_dist"}.get, exact=True))
