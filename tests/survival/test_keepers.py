"""A GPT is trained through the loss of all servers of a stage, with its state in memory and no checkpoint."""

import os
import signal

import msgspec
import pytest

from harness.started import wait_until
from recycle.faults.menu import Kind
from recycle.plan.instruction import Op
from recycle.runtime.keep.keeper_copies import Snapshot
from recycle.state.redundancy import Redundancy
from tests.survival.trained import MODEL, Trained, fault

ONE = Redundancy.parse("copies=1")
SAVED = 8
"""The iterations before the first checkpoint of a run that makes one before its end."""


@pytest.fixture(autouse=True, scope="module")
def _short_text_and_no_disk(short_text):
    def read(*_):
        raise AssertionError("a checkpoint is read")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recycle.megatron.gpt.checkpointing.read_stage", read)
        patch.setattr(Trained, "model", msgspec.structs.replace(MODEL, exact=True))
        yield


@pytest.fixture(scope="module")
def reference(shared_runs):
    return Trained.undisturbed(shared_runs, checkpoint_every=SAVED)


def require_equal(run, reference):
    """Nothing differs from the run that nothing befell, not by a bit, and no disk was read."""
    run.require_same(reference)
    assert {each.restore for each in run.views} == {"memory"}, run.story
    run.require_same_bits(reference)


def stage_kills(step=6):
    return [fault(Kind.KILL, f"W{pipeline}_1", step, Op.F) for pipeline in range(3)]


def test_a_lost_stage_is_restored_from_memory_to_the_bit(tmp_path, reference):
    run = Trained(tmp_path / "run", *stage_kills(), redundancy=ONE)
    require_equal(run, reference)
    # The iteration in flight is made again, and at most one before it.
    assert min(each.step for each in run.views[1:]) >= 5, run.story
    assert not [each for each in run.texts("warning") if "memory" in each], run.story
    assert any("of stage 1 is taken from this host's keeper" in each for each in run.texts("memory")), run.story


def test_a_stage_that_dies_in_the_middle_of_a_snapshot_twice(tmp_path, reference, monkeypatch):
    put = Snapshot._copy

    def die_halfway(snapshot):
        part = snapshot._part
        if part.stage == 0 and (part.epoch, part.version) in {(0, 3), (1, 7)}:
            snapshot._keepers[0][1].offer(part, b"", 1000).write([memoryview(bytes(500))])
            # Who hears of a peer's death before it begins would live.
            (tmp_path / f"{part.epoch} {part.number}").touch()
            wait_until(lambda: all((tmp_path / f"{part.epoch} {each}").exists() for each in range(part.parts)))
            os.kill(os.getpid(), signal.SIGKILL)
        put(snapshot)

    monkeypatch.setattr(Snapshot, "_copy", die_halfway)
    run = Trained(tmp_path / "run", redundancy=ONE)
    require_equal(run, reference)
    assert [each.step for each in run.views if each.joined] == [2, 6], run.story
