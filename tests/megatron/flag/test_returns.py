"""A server that was killed comes back, in whatever stage and after whatever its training code has done before."""

import random
import re

import pytest

from harness.flag_runs import kill, losses, nearly, needs_training, norms, survive, train
from harness.undisturbed import trained_by_script

pytestmark = [needs_training, pytest.mark.timeout(1200)]

ON = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms")
KEPT = ("--recycle-keep-in-memory", "copies=1")
CALM = ("--lr", 2e-3)
"""With the usual learning rate a loss may have a spike, which makes much of how sums were rounded before."""
STAGES, LENGTH, SAVED = 3, 24, 2
PATIENCE = 120.0
"""Seconds without a line after which a run has frozen, on a machine that others use as well."""


def staged(pipelines):
    """The settings of three stages."""
    size = ("--pipeline-model-parallel-size", STAGES, "--num-layers", 2 * STAGES)
    return (*CALM, *size, "--global-batch-size", 2 * pipelines * STAGES)


def nearly_all(printed):
    """Losses, and norms, which are printed with three digits."""
    return nearly(printed), {number: pytest.approx(norm, abs=2e-3) for number, norm in norms(printed).items()}


def all_of(printed):
    return losses(printed), norms(printed)


@pytest.fixture
def pace(tmp_path):
    """The file with which a run waits for a server that is away."""
    return tmp_path / "slow"


def rejecting(dataset, pace, victims, *settings, apart=1, rejected="", **job):
    """Run the flag's job and kill ranks in turn, each when the one before is back."""
    paced = {"script": "rejecting_gpt.py", "told": {"REJECT": rejected}, "apart": apart, "patience": PATIENCE}
    return survive(dataset, pace, victims, *ON, *settings, **paced, **job)


@pytest.mark.long
@pytest.mark.parametrize(
    ("pipelines", "virtual"),
    [
        pytest.param(3, (), id="plain"),
        pytest.param(2, ("--num-layers-per-virtual-pipeline-stage", 1), id="virtual"),
    ],
)
def test_a_server_of_each_stage_comes_back_in_turn_and_nothing_changes(shared_runs, dataset, pace, pipelines, virtual):
    """From stock's checkpoint, because stock Megatron begins with other parameters where there are virtual stages."""
    settings, job = staged(pipelines), {"ranks": pipelines * STAGES, "iterations": LENGTH}
    saves = ("--exit-interval", SAVED, "--save-interval", SAVED, "--save")
    folder = trained_by_script(shared_runs, dataset, *settings, saves=saves, **job).folder
    stock = train(dataset, *settings, "--load", folder, **job)
    victims = [pipelines * stage + random.randrange(pipelines) for stage in random.sample(range(STAGES), STAGES)]
    survived = rejecting(dataset, pace, victims, *settings, *virtual, "--load", folder, **job)
    assert all_of(survived) == nearly_all(stock), victims


@pytest.mark.parametrize(
    ("settings", "rejected"),
    [
        pytest.param((), "3", marks=pytest.mark.long, id="rejected"),
        pytest.param(KEPT, "3", id="rejected and kept"),
        pytest.param(("--iterations-to-skip", 3, 4), "", marks=pytest.mark.long, id="skipped"),
    ],
)
def test_who_comes_back_after_an_iteration_that_was_made_again_or_skipped_changes_nothing(
    dataset, pace, settings, rejected
):
    stock_settings = () if settings == KEPT else settings
    told = {"PACE": str(pace), "REJECT": rejected}
    stock = train(dataset, *CALM, *stock_settings, iterations=16, script="rejecting_gpt.py", told=told)
    victim = random.randrange(4)
    survived = rejecting(dataset, pace, [victim], *CALM, *settings, apart=6, rejected=rejected, iterations=16)
    assert all_of(survived) == nearly_all(stock), victim


@pytest.mark.long
@pytest.mark.parametrize("more", [("--decoupled-lr", 1e-3), ("--pipeline-model-parallel-layout", "E|ttt|tttL")])
def test_who_comes_back_to_a_stage_without_some_groups_of_parameters_changes_nothing(dataset, pace, more):
    settings, job = (*staged(2), *more), {"ranks": 2 * STAGES, "iterations": 16}
    stock = train(dataset, *settings, **job)
    stages = range(STAGES) if more[0].endswith("layout") else [1]
    victim = 2 * random.choice(stages) + random.randrange(2)
    survived = rejecting(dataset, pace, [victim], *settings, **job)
    assert all_of(survived) == nearly_all(stock), victim


@pytest.mark.long
def test_a_stage_that_is_lost_around_a_rejected_iteration_comes_back_from_memory(dataset, pace):
    """Its results may be rejected again when others, whose training code is past it, make it again."""
    told, when = {"PACE": str(pace), "REJECT": "6"}, random.uniform(0, 0.5)
    script = "rejecting_gpt.py"
    stock = train(dataset, *CALM, iterations=16, script=script, told=told)
    watch = kill([(0, 5, when), (1, 5, when)])
    settings = (*CALM, *ON, *KEPT)
    survived = train(dataset, *settings, iterations=16, script=script, told=told, watch=watch, patience=PATIENCE)
    assert set(re.findall(r"(W\d_\d) was killed by signal 9", survived.output)) == {"W0_0", "W1_0"}, when
    assert all_of(survived) == nearly_all(stock), when


@pytest.fixture
def left_in_memory(dataset, tmp_path):
    """The settings of a job of eight iterations whose servers died when they had made five of them."""

    def left(*settings):
        kept = (*CALM, *settings, *ON, *KEPT, "--recycle-record", tmp_path / "run")
        (tmp_path / "5").touch()
        held = {"script": "held_gpt.py", "told": {"HELD": str(tmp_path)}}
        with pytest.raises(AssertionError, match="recycle: all servers are dead; the memory of hosts has the state"):
            train(dataset, *kept, "--recycle-restarts", 0, watch=kill([(rank, 5, 0) for rank in range(4)]), **held)
        return (*kept, "--recycle-resume")

    return left


@pytest.mark.long
@pytest.mark.parametrize(
    "dying",
    [
        # The late one takes the state from its peer, which has it from a keeper.
        pytest.param("3", id="a server"),
        # The one that is back first goes through the same calls as those that have begun with it.
        pytest.param("2,3", id="a stage"),
    ],
)
def test_where_a_start_goes_on_from_memory_servers_may_die_before_all_have_the_state(
    dataset, left_in_memory, tmp_path, dying
):
    told = {"MARKS": str(tmp_path), "DYING": dying}
    resumed = train(dataset, *left_in_memory(), script="late_start_gpt.py", told=told, patience=PATIENCE)
    assert re.search(r"W1_1 was killed by signal 9 \(SIGKILL\); training goes on with 3 servers", resumed.output)
    assert resumed.output.count("was killed") == len(dying.split(","))
    found, stock = losses(resumed), nearly(train(dataset, *CALM))
    assert found == {key: stock[key] for key in found}
    assert ("trained", 8) in found


@pytest.mark.long
def test_a_start_from_memory_that_trains_for_longer_is_like_one_from_a_checkpoint(dataset, left_in_memory, tmp_path):
    falling = ("--lr-decay-style", "cosine", "--min-lr", 1e-4)
    saved = ("--ckpt-format", "torch", "--load", tmp_path)
    train(dataset, *CALM, *falling, *saved, "--save", tmp_path, "--save-interval", 4, "--exit-interval", 4)
    stock = train(dataset, *CALM, *falling, *saved, "--override-opt_param-scheduler", iterations=12)
    resumed = train(dataset, *left_in_memory(*falling), iterations=12)
    found, expected = rates(resumed), rates(stock)
    assert found == {number: expected[number] for number in found}
    found, expected = losses(resumed), nearly(stock)
    # What is printed in the second iteration of a start is the mean of its first two.
    assert found == {key: expected[key] for key in found} | {("trained", 6): found["trained", 6]}
    assert ("trained", 12) in found


def rates(printed):
    """The learning rates that a run has printed, by iteration."""
    return dict(re.findall(r"iteration +(\d+)/.* learning rate: (\S+)", printed.output))
