"""Servers of several ranks: one that loses a rank is dead, all the others go on, and it comes back whole."""

import os
import signal
import subprocess

import msgspec
import pytest

from harness.digests import data_digests
from harness.etcd import etcd
from harness.etcd import missing as missing_etcd
from harness.examples import paper_job
from harness.ports import free_port
from harness.processes import send_signal
from harness.started import TRAIN, by_hand, small_run, wait_until
from recycle.faults.menu import Kind
from recycle.plan.instruction import Op
from recycle.record.recording import DeathLine
from recycle.runtime.checkpoint_folders import checkpoints
from recycle.runtime.net.own_ranks import OwnRanks
from recycle.state.redundancy import Redundancy
from tests.survival.trained import MODEL, Trained, fault

JOB = paper_job(pipelines=2, stages=2, micro_batches=2, released=0)

SAVED = 8
"""The iterations before the first checkpoint, which is not the last."""


class SplitRun(Trained):
    """A run whose servers have two ranks each."""

    job = JOB
    model = msgspec.structs.replace(MODEL, clip=0.5, tensor_parallel=2)


pytestmark = pytest.mark.usefixtures("short_text")


@pytest.fixture(scope="module")
def reference(shared_runs):
    return SplitRun.undisturbed(shared_runs, checkpoint_every=SAVED)


@pytest.fixture
def doom(monkeypatch, tmp_path):
    """Kill a rank of a server, once, at the beginning of its n-th collective, while the other one is in it."""
    start, doomed, calls = OwnRanks.start, {}, []

    def counted(own, group, check, name, *arguments):
        server, rank = own._participant
        calls.append(name)
        mark = tmp_path / f"{server.server} {rank.number}"
        if doomed.get((str(server.server), rank.number)) == len(calls) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return start(own, group, check, name, *arguments)

    monkeypatch.setattr(OwnRanks, "start", counted)
    return doomed


@pytest.mark.parametrize(
    ("server", "rank", "call"), [("W0_0", 0, 40), pytest.param("W1_1", 1, 75, marks=pytest.mark.long)]
)
def test_who_loses_a_rank_is_dead_and_the_losses_stay_as_they_are(tmp_path, reference, doom, server, rank, call):
    doom[server, rank] = call
    run = SplitRun(tmp_path / "run")
    run.require_same(reference)
    assert [len(each.servers) for each in run.views] == [4, 3], run.story
    (death,) = {(each.server, each.reason) for each in run.of(DeathLine)}
    assert death == (server, f"has lost rank {rank}, which was killed by signal 9 (SIGKILL)")


IN_A_LIST = range(10)
"""Calls among the ranks of the first stage in an iteration; those of the last stage make 16."""


@pytest.mark.long
@pytest.mark.parametrize("call", IN_A_LIST)
def test_where_two_servers_lose_a_rank_at_any_call_of_a_list_the_losses_stay_as_they_are(
    tmp_path, reference, doom, call
):
    """The other ranks of those that live stop at one line, whatever each was in."""
    doom["W0_0", 1] = 4 * len(IN_A_LIST) + call
    doom["W1_1", 0] = 5 * 16 - call
    run = SplitRun(tmp_path / "run")
    run.require_same(reference)
    assert len(run.views[-1].servers) == 2, run.story


@pytest.mark.long
def test_exact_sums_over_ranks_have_the_same_bits(tmp_path, doom):
    # Each rank's part of a sequence makes a part of the gradients of norms, with bounds of its own.
    exact = {"exact": True, "sequence_parallel": True}
    whole = SplitRun(tmp_path / "whole", changes=exact, iterations=5)
    doom["W1_0", 0] = 40
    broken = SplitRun(tmp_path / "broken", changes=exact, iterations=5)
    assert [len(each.servers) for each in broken.views] == [4, 3], broken.story
    assert broken.losses() == whole.losses()


@pytest.mark.parametrize("distributed", [pytest.param(False, marks=pytest.mark.long), True])
def test_all_servers_of_a_stage_are_restored_from_memory_with_all_their_ranks(tmp_path, reference, distributed):
    """And keepers write the checkpoint of each rank, which is that of the servers to the bit."""
    kills = [fault(Kind.KILL, f"W{pipeline}_1", SAVED + 2, Op.F) for pipeline in range(2)]
    kept = {
        "redundancy": Redundancy.parse("copies=1"),
        "checkpoint_every": SAVED,
        "changes": {"distributed_optimizer": distributed},
    }
    run = SplitRun(tmp_path / "run", *kills, **kept)
    run.require_same(reference)
    assert {each.restore for each in run.views} == {"memory"}, run.story
    assert any("of stage 1 is taken from this host's keeper" in each for each in run.texts("memory")), run.story
    # The iteration in flight is made again, and at most one before it.
    assert min(each.step for each in run.views[1:]) > SAVED, run.story
    assert not [each for each in run.texts("warning") if "memory" in each], run.story
    found, expected = (checkpoints(each.run.checkpoints)[0] for each in (run, reference))
    for shard in ("stage-0/tensor-0", "stage-0/tensor-1", "stage-1/tensor-0", "stage-1/tensor-1"):
        assert data_digests(found / shard) == data_digests(expected / shard)


def words(folder):
    """Of a run of two servers with two ranks each, which lasts until it is told to end."""
    return [*TRAIN, *small_run(folder / "run", 2, 1, 20_000, keys="tensor_parallel = 2\n")]


@pytest.fixture
def apart(start, tmp_path):
    """The four processes of two servers, started apart."""
    port = free_port()
    arguments = [*words(tmp_path), "--restarts", "1"]
    return [start(arguments, None, by_hand(rank, 4, "127.0.0.1", port)) for rank in range(4)]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_ranks_that_were_started_apart_come_back_together(apart):
    apart[0].wait_for("iteration 5/")
    for place, server in ((3, "W1_0"), (1, "W0_0")):
        worker = ["pkill", "-KILL", "-P", str(apart[place].process.pid), "-f", f"recycle: {server} rank 1"]
        subprocess.run(worker, check=True)
        apart[0].wait_for(f"{server} (incarnation 1) is back: 2 of 2 servers")
    for each in apart:
        each.process.terminate()
    assert {each.ended() for each in apart} == {128 + signal.SIGTERM}


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd())
def test_the_command_brings_back_all_ranks_of_a_server_in_a_run_that_meets_in_etcd(tmp_path, start):
    with etcd() as served:
        run = start([*words(tmp_path), "--restarts", "0", "--store", served.url])
        run.wait_for("iteration 5/")
        (worker,) = run.processes("^recycle: W1_0 rank 1")
        send_signal(worker, signal.SIGKILL)
        run.wait_for("1 of 2 servers")
        joiner = start([*TRAIN, "join", str(tmp_path / "run"), "--server", "W1_0"])
        run.wait_for("W1_0 (incarnation 1) is back: 2 of 2 servers")
        before = len(run.output)
        joiner.process.terminate()
        assert joiner.ended() == 128 + signal.SIGTERM, joiner.output
        wait_until(lambda: ": 1 of 2 servers" in run.output[before:])
        assert "W1_0 leaves: SIGTERM" in run.output
        run.process.terminate()
        assert run.ended() == 128 + signal.SIGTERM, run.output
