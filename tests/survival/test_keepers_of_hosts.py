"""A GPT on several hosts goes on from the memory of the hosts that are left, without any disk."""

import subprocess

import pytest

from harness.digests import data_digests
from harness.forked import TRAINER
from harness.hosts import hosts, missing
from harness.started import TRAIN, Started, by_hand, losses, recorded, small_run, wait_until
from recycle.cli.join import LATE
from recycle.record.recording import CopyLine, InstantLine, ViewLine
from recycle.runtime.checkpoint_folders import folder_of
from recycle.state.redundancy import Redundancy
from tests.survival.test_hosts import titles

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(400)]

ITERATIONS, SAVED = 60, 50
PIPELINES = 2
ON = (0, 1) * PIPELINES
"""The host of each rank: that of its stage, so that a host has all servers of one."""
STAGE = [f"W{pipeline}_1" for pipeline in range(PIPELINES)]


def words(folder, iterations=ITERATIONS, kept="copies=2"):
    keeping = ["--keep-in-memory", kept, "--checkpoint-every", str(SAVED)]
    return [*TRAIN, *small_run(folder / "run", PIPELINES, 2, iterations, *keeping)]


@pytest.fixture(scope="module")
def undisturbed(shared_runs):
    """The folder of a run on one machine that nothing befell."""

    def make(folder):
        run = Started(words(folder, kept="off"), imported=TRAINER)
        assert run.ended() == 0, run.output

    return shared_runs.run(__name__, make, None).folder


def started_apart(start, found, arguments, on=ON):
    return [
        start(arguments, found[host], by_hand(rank, len(on), found[0].address, 29500)) for rank, host in enumerate(on)
    ]


def told(folder, kind):
    """All lines of a kind that a run's processes have written."""
    return [each for each in recorded(folder / "run") if isinstance(each, kind)]


def require_same(folder, undisturbed):
    """Iterations and checkpoints are, to the bit, those of a run that nothing befell, and none was read."""
    assert losses(folder / "run") == losses(undisturbed / "run")
    assert {each.restore for each in told(folder, ViewLine)} == {"memory"}
    said = [each.text for each in told(folder, InstantLine) if "is written from memory by" in each.text]
    assert len(said) == 1, said
    for step in (SAVED, ITERATIONS):
        for stage in ("stage-0/tensor-0", "stage-1/tensor-0"):
            found, expected = (folder_of(each / "run" / "checkpoints", step) for each in (folder, undisturbed))
            assert data_digests(found / stage) == data_digests(expected / stage)


@pytest.mark.long
@pytest.mark.parametrize("comes", [2, 1], ids=["another host comes", "it boots again"])
def test_a_host_with_all_servers_of_a_stage_and_its_keeper_is_lost(start, tmp_path, undisturbed, comes):
    with hosts(3) as found:
        ranks = started_apart(start, found, words(tmp_path))
        ranks[0].wait_for("iteration 5/")
        assert all("recycle: keeper" in titles(each) for each in found[:2])
        if comes == 1:
            found[1].reboot()
        else:
            found[1].crash()
        ranks[0].wait_for("no live server of stage 1 is left: waiting for a replacement")
        join = [*TRAIN, "join", str(tmp_path / "run"), "--address", found[comes].address]
        joiners = [start([*join, "--server", server], found[comes]) for server in STAGE]
        # The host has a keeper in the place of the one that is lost.
        wait_until(lambda: "recycle: keeper" in titles(found[comes]))
        assert ranks[0].ended() == 0, ranks[0].output
        for each in ranks[2::2]:
            assert each.ended() == 0, each.output
        # One is enough for the run to go on, and its end may come before the other one is in.
        failed = [each.output for each in joiners if each.ended() != 0]
        assert len(failed) < len(joiners), failed
        assert all(LATE in " ".join(each.split()) for each in failed), failed
        # Whoever was there keeps no process.
        wait_until(lambda: not any("recycle: keeper" in titles(each) for each in (found[0], found[comes])))
    require_same(tmp_path, undisturbed)
    # Both hosts keep all that is put when the servers are back.
    assert {len(each.hosts) for each in told(tmp_path, CopyLine) if each.version == ITERATIONS - 1} == {2}
    sources = [each.text for each in told(tmp_path, InstantLine) if "of stage 1 is taken from" in each.text]
    assert sources, "nobody took the stage from memory"
    assert all(each.endswith("from the keeper of host1 (10.77.0.1)") for each in sources)


@pytest.mark.long
@pytest.mark.parametrize(
    ("on", "before", "after"),
    [(ON, "copies=2", "copies=2"), (ON, "copies=1", "copies=2"), ((0, 1, 2, 1), "copies=1", "parity=2+1")],
)
def test_all_trainers_of_the_job_are_lost_and_a_new_start_goes_on_from_the_keepers(
    start, tmp_path, undisturbed, on, before, after
):
    with hosts(max(on) + 1) as found:
        ranks = started_apart(start, found, words(tmp_path, kept=before), on)
        ranks[0].wait_for("iteration 9/")
        kill = "pkill", "-KILL", "-f", "harness.scripts.train|recycle: [^k]"
        for killing in [subprocess.Popen(host.command(*kill)) for host in found]:
            # 1: those of a host may have ended already, because those of another one had.
            assert killing.wait() in (0, 1)
        for each in ranks:
            each.ended()
            assert f"iteration {ITERATIONS}/" not in each.output
        assert not list((tmp_path / "run" / "checkpoints").glob("step*"))
        again = started_apart(start, found, [*words(tmp_path, kept=after), "--resume"], on)
        for each in again:
            assert each.ended() == 0, each.output
        wait_until(lambda: not any("recycle: keeper" in titles(each) for each in found))
    require_same(tmp_path, undisturbed)
    assert max(each.step for each in told(tmp_path, ViewLine)) >= 7
    # Keepers that were there already take what the new start keeps.
    assert not [each for each in told(tmp_path, InstantLine) if "may be kept" in each.text]
    kept = [each for each in told(tmp_path, CopyLine) if each.version > SAVED]
    assert {len(each.hosts) for each in kept} == {Redundancy.parse(after).pieces}
