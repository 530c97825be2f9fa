"""With the distributed optimizer no death loses a shard, and all bits are those of a run whose servers hold it all."""

import os
import signal
from multiprocessing import get_context

import msgspec
import pytest

from harness.digests import data_digests
from recycle.faults.menu import Kind
from recycle.job import Server
from recycle.megatron.gpt.checkpointing import shard
from recycle.megatron.gpt.server import GptServer
from recycle.plan.instruction import Op
from recycle.runtime.checkpoint_folders import folder_of
from recycle.state.redundancy import Redundancy
from tests.survival.trained import MODEL, Trained, fault

CONTEXT = get_context("fork")

SAVED = 7
"""The iterations before the first checkpoint of a run that makes one before its end."""


pytestmark = pytest.mark.usefixtures("short_text")


class Exact(Trained):
    """A run whose sums do not depend on which servers live, and whose norm is that of all shards."""

    model = msgspec.structs.replace(MODEL, exact=True, clip=0.5)


@pytest.fixture(scope="module")
def whole(shared_runs):
    """The run that nothing befalls, and whose servers hold all of their stages."""
    return Exact.undisturbed(shared_runs, checkpoint_every=SAVED)


def die_together(monkeypatch, servers, step):
    """Have servers die at the beginning of a step, none of which goes to a view without another one before it dies."""
    died = CONTEXT.Event()
    all_there, iterate = CONTEXT.Barrier(len(servers), died.set), GptServer.iterate

    def iterate_or_die(server, now):
        if now == step and str(server._server) in servers and not died.is_set():
            all_there.wait(120)
            os.kill(os.getpid(), signal.SIGKILL)
        iterate(server, now)

    monkeypatch.setattr(GptServer, "iterate", iterate_or_die)


@pytest.mark.long
def test_a_shard_that_is_lost_is_taken_from_the_checkpoint(tmp_path, whole, monkeypatch):
    # Of three servers of a stage, two hold any shard.
    die_together(monkeypatch, ("W0_1", "W1_1"), 6)
    run = Exact(tmp_path / "run", changes={"distributed_optimizer": True}, checkpoint_every=4)
    run.require_same_bits(whole)
    assert "checkpoint" in {each.restore for each in run.views}, run.story


def test_a_shard_that_is_lost_is_taken_from_keepers(tmp_path, whole, monkeypatch):
    # First the two that hold a shard, and then all servers of a stage.
    die_together(monkeypatch, ("W0_1", "W1_1"), 4)
    die_together(monkeypatch, ("W0_0", "W1_0", "W2_0"), 8)
    kept = Redundancy.parse("copies=1")
    run = Exact(tmp_path / "run", changes={"distributed_optimizer": True}, redundancy=kept, checkpoint_every=SAVED)
    run.require_same_bits(whole)
    assert {each.restore for each in run.views} == {"memory"}, run.story
    for stage in (0, 1):
        assert any(f"of stage {stage} is taken from this host's keeper" in each for each in run.texts("memory")), (
            run.story
        )
        # What keepers have put together from shards is what servers write that hold all of them.
        found, expected = (folder_of(each.run.checkpoints, SAVED) / shard(stage, 0) for each in (run, whole))
        assert data_digests(found) == data_digests(expected), run.story


@pytest.fixture
def two_leave(monkeypatch):
    """The first two servers of the first stage are told to leave, at once."""
    iterate = GptServer.iterate

    def leave_at_first(server, step):
        if step == 0 and server._server in (Server(0, 0), Server(1, 0)):
            os.kill(os.getpid(), signal.SIGTERM)
        iterate(server, step)

    monkeypatch.setattr(GptServer, "iterate", leave_at_first)


def test_servers_that_leave_together_take_no_shard_with_them(tmp_path, whole, two_leave):
    run = Exact(tmp_path / "run", changes={"distributed_optimizer": True})
    run.require_same_bits(whole)
    # The first that is told to be dead ends the view, and may keep the other from leaving in the same one. Then each
    # leaves a holder of its shards behind.
    parted = [(len(each.servers), each.restore) for each in run.views[1:]]
    assert parted in ([(4, "checkpoint")], [(5, "memory"), (4, "memory")]), run.story


def test_who_was_kept_from_leaving_by_a_death_leaves_early_in_the_next_view(tmp_path, whole, two_leave):
    run = Exact(tmp_path / "run", fault(Kind.KILL, "W2_1", 5, Op.F), changes={"distributed_optimizer": True})
    run.require_same_bits(whole)
    assert len(run.views[-1].servers) == 3, run.story
