"""Layers of dead servers move to others while training goes on, also across pipelines; no bit changes."""

import os
import signal

import msgspec
import pytest

from harness.examples import QUICK, placed_job
from harness.waiting import AtMost, ForReturn, wait_between
from recycle.faults.menu import Kind
from recycle.holding import with_own_layout
from recycle.job import Server
from recycle.megatron.gpt.checkpointing import shard
from recycle.megatron.gpt.server import HeldChunks
from recycle.placing.decision import OF_A_CLUSTER
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.planner.moving import ChunkMover
from recycle.runtime.checkpoint_folders import checkpoints
from recycle.runtime.step.checkpoint import read_stage
from tests.survival.trained import MODEL, Trained, fault

JOB = with_own_layout(placed_job("consecutive:2", pipelines=3, servers=2, micro_batches=4, limit=8))
PLAN = make_plan(JOB, (), Mode(), QUICK)
ITERATIONS, BACK = 26, 14


class Moved(Trained):
    """Runs of three pipelines of two servers, which hold two of the model's four layers each."""

    job = JOB
    model = msgspec.structs.replace(MODEL, layers=4, exact=True)
    mover = ChunkMover(PLAN, OF_A_CLUSTER)

    @classmethod
    def describe(cls, folder, iterations, **options):
        return super().describe(folder, iterations, outlook=OF_A_CLUSTER, **options)

    def parameters(self):
        """All that the last checkpoint holds of each chunk."""
        (*_, newest) = checkpoints(self.run.checkpoints)
        assert newest.name == f"step-{self.run.iterations:08d}"
        return [read_stage(newest, shard(chunk, 0)) for chunk in range(len(JOB.stages))]

    def require_equal(self, reference):
        """Nothing differs from what a run that nothing befell has trained, in any bit."""
        assert self.error == "", self.story
        assert self.losses() == reference.losses(), self.story
        for mine, other in zip(self.parameters(), reference.parameters(), strict=True):
            assert mine.keys() == other.keys()
            assert all(bool((mine[name] == other[name]).all()) for name in mine), self.story


pytestmark = pytest.mark.usefixtures("short_text")


@pytest.fixture(scope="module")
def reference(shared_runs, short_text):
    return Moved.undisturbed(shared_runs, iterations=ITERATIONS)


def weighs(survivor):
    """Whether who leads weighs where layers are to be."""
    work = survivor._moving._work
    return work is not None and not work.done()


def awaits_copies(survivor):
    """Whether who leads waits for copies that it has ordered."""
    return survivor._order is not None and survivor._wish is None


@pytest.fixture
def patient(monkeypatch):
    """Layers have moved soon after a death, before hardly anything else is trained."""
    wait_between(AtMost(100.0, weighs), monkeypatch.setattr)
    wait_between(AtMost(2.0, awaits_copies), monkeypatch.setattr)


def test_layers_move_after_a_death_and_back_at_the_return(tmp_path, reference, patient, monkeypatch):
    hold = HeldChunks.hold

    def told(chunks, wanted):
        if wanted == (0, 1, 2, 3):
            (tmp_path / "W0_0").write_text(str(chunks.held))
        hold(chunks, wanted)

    monkeypatch.setattr(HeldChunks, "hold", told)
    wait_between(ForReturn(Server(1, 1), BACK), monkeypatch.setattr)
    faults = fault(Kind.KILL, "W1_1", 3), fault(Kind.JOIN, "W1_1", BACK)
    run = Moved(tmp_path / "run", *faults, iterations=ITERATIONS)
    run.require_equal(reference)
    # First W1_1 has a part of the pipeline that is the shortest without it, and then all are at home.
    views = [(6, False), (5, False), (5, True), (6, True), (6, True)]
    assert [(len(each.servers), each.moved) for each in run.views] == views, run.story
    # All that W0_0 was to hold it had before the pause.
    assert (tmp_path / "W0_0").read_text() == "(0, 1, 2, 3)"
    rerouted, moved = (each.period for each in run.views[1:3])
    assert moved < rerouted
    assert run.views[4].period == run.views[0].period
    away, home = run.texts("move")
    assert away.startswith("move layers, which gains")
    # W0_0 is a pipeline of its own now, and the others are one.
    assert "; pipeline 2 goes on with 2 servers and borrows W1_0 and W0_1; " in away
    assert away.endswith("; pipeline 1 is given up, and its 1 server used elsewhere: W1_0")
    assert home.startswith("move layers, which gains")


@pytest.mark.long
def test_a_death_in_the_middle_of_a_move_is_one_as_any_other(tmp_path, reference, patient, monkeypatch):
    hold = HeldChunks.hold

    def hold_or_die(chunks, wanted):
        if wanted == (0, 1, 2, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        hold(chunks, wanted)

    monkeypatch.setattr(HeldChunks, "hold", hold_or_die)
    # W0_0 dies where it is to take up all chunks, the copies of which it has.
    run = Moved(tmp_path / "run", fault(Kind.KILL, "W1_1", 3), iterations=ITERATIONS)
    run.require_equal(reference)
    assert [len(each.servers) for each in run.views][:3] == [6, 5, 4], run.story
    assert "W0_0" not in run.views[-1].servers
