"""Half precision: the scale is Megatron's, and whoever waits or fails, training ends with the same bits."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.optimizer.grad_scaler import DynamicGradScaler

from harness.examples import paper_job, plan_around
from harness.waiting import ForReturn, wait_between
from recycle.faults.menu import Fault, Faults, Kind
from recycle.faults.pattern import InstructionPattern
from recycle.job import Server
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.megatron.shared.stage import MegatronStage
from recycle.plan.mode import Mode
from recycle.runtime.errors import RunError
from recycle.runtime.model_keys import ScaleRule
from recycle.runtime.step.loss_scale import LossScale
from tests.megatron.gpt.test_exact import MODEL, PATIENT, run

HALF = msgspec.structs.replace(MODEL, fp16=True, clip=None, initial_loss_scale=2.0**22, loss_scale_window=9)
JOB = paper_job(pipelines=3, stages=2, micro_batches=2, released=0)
LENGTH = 32
# Where micro-batch 1.1 leaves an infinite gradient: seeded, and the same in every run. Before the last one, so many
# gradients are used as they are that the next norm is guessed again.
SPOILED = {(step, random.Random(step).randrange(2)) for step in (*random.Random(16).sample(range(6, 19), 5), 30)}
WAITING = Mode("split", "global")


pytestmark = pytest.mark.usefixtures("short_text")


@pytest.fixture
def _spoiled(monkeypatch):
    def spoil(original):
        def backward(stage, micro_batch, *others):
            result = original(stage, micro_batch, *others)
            if (micro_batch.step, stage._stage) in SPOILED and micro_batch[1:] == (1, 1):
                next(iter(stage.parameters())).main_grad.view(-1)[0] = float("inf")
            return result

        return backward

    for name in ("backward", "input_gradient"):
        monkeypatch.setattr(MegatronStage, name, spoil(getattr(MegatronStage, name)))


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([True, True, True, False]), max_size=60),
    st.sampled_from([2.0**3, 2.0**32]),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_the_scale_grows_and_falls_as_megatrons_does(finite, initial, window, hysteresis):
    run_on_cpu()
    theirs = DynamicGradScaler(initial, 1.0, 2.0, 0.5, window, hysteresis)
    ours = LossScale(ScaleRule(initial, 1.0, window, hysteresis))
    for each in finite:
        ours.advance(each)
        theirs.update(not each)
        trackers = [theirs.scale.item(), theirs._growth_tracker, theirs._hysteresis_tracker]
        assert ours.state.tolist() == trackers


@pytest.mark.long
@pytest.mark.usefixtures("_spoiled")
def test_failures_leave_no_trace(tmp_path, monkeypatch):
    # So small a scale that no gradient overflows by itself, and the first one that is spoiled comes as a surprise.
    model = msgspec.structs.replace(HALF, initial_loss_scale=2.0**15, hysteresis=1)
    whole = run(tmp_path / "whole", plan_around(JOB, mode=WAITING), model, LENGTH)
    skipped = sorted(step for step, _ in SPOILED)
    scale = LossScale(model.scale_rule)
    for step in range(LENGTH):
        scale.advance(finite=step not in skipped)
    assert whole.notes[0].endswith(f"the loss scale is {scale.value:.0f}, and {len(skipped)} steps were skipped")

    def kill(name, step, op):
        server = Server.parse(name)
        return Fault(Kind.KILL, (server,), step=step, instruction=InstructionPattern.parse(f"{server.stage}{op}"))

    # One dies while the overflow of the step before is still to be found out, and one between REDUCE and STEP.
    faults = Faults(
        (
            kill("W1_0", skipped[0] + 1, "F"),
            Fault(Kind.JOIN, (Server(1, 0),), step=skipped[0] + 3),
            kill("W0_1", LENGTH - 3, "STEP"),
        )
    )
    wait_between(ForReturn(Server(1, 0), skipped[0] + 3), monkeypatch.setattr)
    broken = run(tmp_path / "broken", plan_around(JOB), model, LENGTH, faults, durations=PATIENT)
    assert broken.dead == {"W1_0", "W0_1"}
    assert broken.joined == {"W1_0"}
    assert broken == whole


@pytest.mark.long
def test_a_run_that_stopped_goes_on_with_its_scale(tmp_path):
    whole = run(tmp_path / "whole", plan_around(JOB), HALF, 14)
    first = run(tmp_path / "parts", plan_around(JOB), HALF, 7)
    second = run(tmp_path / "parts", plan_around(JOB, "W0_1"), HALF, 14, resume=True)
    assert second.states == whole.states
    assert first.losses | second.losses == whole.losses


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"bf16": True}, {}, "fp16 and bf16 are both on: .* turn one off"),
        ({"min_loss_scale": 2.0**30}, {}, r"initial_loss_scale is 4.1943e\+06: .* min_loss_scale"),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path, changes, settings, message):
    with pytest.raises(RunError, match=message):
        run(tmp_path, plan_around(JOB), msgspec.structs.replace(HALF, **changes), **settings)
