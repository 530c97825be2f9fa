"""Exact mode: whoever is alive, and whatever happens to the others, training ends with the same bits."""

import hashlib
import random

import msgspec
import pytest
import torch
import torch.distributed.checkpoint as dcp

from harness.examples import QUICK, paper_job, placed_job, plan_around
from harness.waiting import ForReturn, wait_between
from recycle.control.membership.durations import Durations
from recycle.faults.menu import Fault, Faults, Kind
from recycle.faults.pattern import InstructionPattern
from recycle.job import Server
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.run_settings import Run
from recycle.megatron.gpt.training import train
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.record.recording import DeathLine, InstantLine, IterationLine, ViewLine
from recycle.runtime.checkpoint_folders import checkpoints
from recycle.runtime.errors import RunError

MODEL = ModelOptions(2, 32, 2, 16, micro_batch_size=2, tied=True, dropout=0.1, learning_rate=0.01, clip=1.0, exact=True)


pytestmark = pytest.mark.usefixtures("short_text")


class Outcome(msgspec.Struct, eq=False):
    """What a run ended with, and what happened in it."""

    states: dict[str, str]
    losses: dict[int, list[float]]
    dead: set[str]
    joined: set[str]
    notes: list[str]

    def __eq__(self, other):
        return self.states == other.states and self.losses == other.losses


def digest(folder):
    """Of all parameters, moments and bounds of a stage."""
    known = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {key: torch.empty(entry.size, dtype=entry.properties.dtype) for key, entry in known.items()}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    content = hashlib.sha256()
    for key, value in sorted(state.items()):
        content.update(key.encode() + value.numpy().tobytes())
    return content.hexdigest()


def run(folder, plan, model=MODEL, iterations=6, faults=None, **settings):
    outcome = Outcome({}, {}, set(), set(), [])

    def watch(event):
        match event:
            case IterationLine() if event.losses:
                assert outcome.losses.setdefault(event.step, event.losses) == event.losses
            case DeathLine():
                outcome.dead.add(event.server)
            case ViewLine():
                outcome.joined |= set(event.joined)
            case InstantLine(kind="norm"):
                outcome.notes.append(event.text)

    training = Run(plan, model, iterations, folder, **settings)
    train(training, watch, lambda failed: make_plan(plan.job, failed, Mode(), QUICK), faults or Faults())
    stages = sorted((checkpoints(training.checkpoints)[-1]).glob("stage-*/tensor-*"))
    outcome.states = {str(each.relative_to(each.parents[1])): digest(each) for each in stages}
    return outcome


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, marks=pytest.mark.long, id="AdamW"),
        pytest.param(
            {
                "bf16": True,
                "per_token_loss": True,
                "optimizer": "sgd",
                "decay": "cosine",
                "warm_up": 2,
                "decay_steps": 5,
            },
            id="bf16, tokens, SGD and a schedule",
        ),
    ],
)
def test_every_plan_ends_with_the_same_bits(tmp_path, changes):
    job = paper_job(pipelines=3, stages=2, micro_batches=2, released=0)
    model = msgspec.structs.replace(MODEL, **changes)
    whole = run(tmp_path / "whole", plan_around(job, mode=Mode("fused", "global")), model)
    assert len(whole.losses) == 6
    for place, failed in enumerate([(), ("W1_1",), ("W0_0", "W2_1")]):
        assert run(tmp_path / str(place), plan_around(job, *failed), model) == whole


def test_a_run_that_stopped_goes_on_with_the_same_bits_without_a_server(tmp_path):
    job = paper_job(pipelines=2, stages=2, micro_batches=2, released=0)
    whole = run(tmp_path / "whole", plan_around(job), iterations=6)
    first = run(tmp_path / "parts", plan_around(job), iterations=3)
    second = run(tmp_path / "parts", plan_around(job, "W0_1"), iterations=6, resume=True)
    assert second.states == whole.states
    assert first.losses | second.losses == whole.losses


PLACED = msgspec.structs.replace(MODEL, layers=4, warm_up=2, decay="cosine", decay_steps=5)


@pytest.mark.long
@pytest.mark.parametrize("form", ["v-shaped", "interleaved:2"])
def test_whichever_server_holds_a_stage_the_bits_are_the_same(tmp_path, form):
    # Where steps wait for the norm, all stages of a server are stepped together.
    model = msgspec.structs.replace(PLACED, clip=10.0)
    whole = run(tmp_path / "whole", plan_around(paper_job(pipelines=2, micro_batches=2, released=0)), model)
    assert whole.states.keys() == {f"stage-{each}/tensor-0" for each in range(4)}
    job = placed_job(form, micro_batches=2)
    for place, failed in enumerate([(), ("W1_0",)]):
        assert run(tmp_path / str(place), plan_around(job, *failed), model) == whole


def test_in_shards_a_server_of_both_ends_of_a_tied_model_gets_the_same_bits(tmp_path):
    # The shards of the embedding and those of the head have their edges at different elements.
    plan = plan_around(placed_job("v-shaped", pipelines=3, micro_batches=2))
    whole, shards = (
        run(tmp_path / str(each), plan, msgspec.structs.replace(PLACED, clip=10.0, distributed_optimizer=each))
        for each in (False, True)
    )
    assert shards == whole


@pytest.mark.long
def test_a_checkpoint_serves_every_placement_of_its_stages(tmp_path):
    standard = plan_around(paper_job(pipelines=2, micro_batches=2, released=0))
    placed = plan_around(placed_job("v-shaped", micro_batches=2), "W0_1")
    whole = run(tmp_path / "whole", placed, PLACED, iterations=6)
    for place, plans in enumerate([(standard, placed), (placed, standard)]):
        parts = tmp_path / str(place)
        first = run(parts, plans[0], PLACED, iterations=3)
        second = run(parts, plans[1], PLACED, iterations=6, resume=True)
        assert second.states == whole.states
        assert first.losses | second.losses == whole.losses


@pytest.mark.long
def test_a_model_that_is_cut_in_another_way_goes_on_from_a_checkpoint(tmp_path):
    # The order in which the norm is put together follows the stages, so nothing is clipped.
    model = msgspec.structs.replace(PLACED, dropout=0.0, clip=None)
    halves = plan_around(paper_job(pipelines=1, stages=2, micro_batches=2, released=0))
    quarters = plan_around(placed_job("v-shaped", pipelines=1, micro_batches=2))
    whole = run(tmp_path / "whole", halves, model, iterations=6)
    parts = [
        run(tmp_path / "parts", plan, model, iterations=2 * turn, resume=turn > 1)
        for turn, plan in enumerate((halves, quarters, halves), 1)
    ]
    assert [sorted(each.states) for each in parts] == [
        [f"stage-{stage}/tensor-0" for stage in range(stages)] for stages in (2, 4, 2)
    ]
    assert parts[0].losses | parts[1].losses | parts[2].losses == whole.losses
    assert parts[2].states == whole.states


# A busy machine must not make anybody else look dead.
PATIENT = Durations(beat=0.05, silence=60.0, hang=60.0, rebuild=20.0, answer=60.0)


@pytest.mark.long
def test_a_server_of_several_stages_dies_in_the_midst_and_another_one_is_replaced(tmp_path, monkeypatch):
    wait_between(ForReturn(Server(0, 0), first=5), monkeypatch.setattr)
    plan = plan_around(placed_job("v-shaped", micro_batches=2))
    whole = run(tmp_path / "whole", plan, PLACED, 12)
    # The one holds both ends of the model; the other one dies among its reductions and steps.
    kills = [
        Fault(Kind.KILL, (Server(*place),), step=step, instruction=InstructionPattern.parse(before))
        for place, step, before in (((0, 0), 3, "3F"), ((1, 1), 9, "2STEP"))
    ]
    join = Fault(Kind.JOIN, (Server(0, 0),), step=5)
    broken = run(tmp_path / "broken", plan, PLACED, 12, Faults((kills[0], join, kills[1])), durations=PATIENT)
    assert (broken.dead, broken.joined) == ({"W0_0", "W1_1"}, {"W0_0"})
    assert broken == whole


LENGTH = 24


@pytest.mark.long
@pytest.mark.parametrize("clip", [pytest.param(0.3, id="each step clips"), pytest.param(10.0, id="nothing clips")])
def test_failures_and_rejoins_at_random_moments_leave_no_trace(tmp_path, monkeypatch, clip):
    back = {"W0_0": 5, "W1_1": 9, "W2_0": 13}
    for name, step in back.items():
        wait_between(ForReturn(Server.parse(name), step), monkeypatch.setattr)
    job = paper_job(pipelines=4, stages=2, micro_batches=2, released=0)
    model = msgspec.structs.replace(MODEL, clip=clip)
    choose = random.Random(clip)

    def kill(name, step):
        server = Server.parse(name)
        send = "SEND_B" if server.stage else "SEND_F"
        before = choose.choice([None, *(f"{server.stage}{op}" for op in ("REDUCE", "STEP", "F", send))])
        pattern = InstructionPattern.parse(before) if before else None
        return Fault(Kind.KILL, (server,), step=step + choose.randrange(4), instruction=pattern)

    kills = {"W0_0": 1, "W1_1": 5, "W2_0": 9, "W3_1": 14, "W1_0": 18}
    joins = [Fault(Kind.JOIN, (Server.parse(name),), step=step) for name, step in back.items()]
    faults = Faults((*(kill(name, step) for name, step in kills.items()), *joins))
    whole = run(tmp_path / "whole", plan_around(job), model, LENGTH)
    broken = run(tmp_path / "broken", plan_around(job), model, LENGTH, faults, durations=PATIENT)
    assert broken.dead == set(kills)
    assert broken.joined == set(back)
    assert broken == whole
    (note,) = whole.notes
    if clip == 10.0:
        assert note == f"guessed the norm in {LENGTH} iterations, 100.0% of them rightly, and waited for it in 0"
    else:
        assert note == f"guessed the norm in 1 iterations, 0.0% of them rightly, and waited for it in {LENGTH - 1}"


def test_where_sums_are_not_exact_it_is_refused(tmp_path):
    job = paper_job(pipelines=2, stages=1, micro_batches=2)
    with pytest.raises(RunError, match=r"exact is on: .* at least two stages"):
        run(tmp_path, plan_around(job))
