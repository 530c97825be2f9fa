"""A run of which nothing but a keeper is left goes on from there with other settings, or ends what it has started."""

import os
import signal

import pytest

from harness.digests import data_digests
from harness.started import TRAIN, recorded, small_run, wait_until
from recycle.control.board.joinfile import last_token
from recycle.megatron.gpt.checkpointing import shard
from recycle.megatron.gpt.server import GptServer
from recycle.record.recording import CopyLine
from recycle.runtime.checkpoint_folders import checkpoints
from recycle.runtime.launch.meet.keepers import dismiss, is_kept
from recycle.state.redundancy import Redundancy
from tests.survival.trained import Trained

SHARDS = "distributed_optimizer = true\n"
KEEP = ("--keep-in-memory", "copies=1")


def words(folder, iterations, *more, keys=""):
    return [*TRAIN, *small_run(folder, 2, 1, iterations, *more, keys=f"exact = true\n{keys}")]


def left_in_memory(start, folder, keys=""):
    """Have a run begun, and nothing left of it but a keeper; gives how many iterations were made for certain."""
    run = start(words(folder, 100_000, *KEEP, keys=keys))
    run.wait_for("iteration 5/")
    run.kill()
    wait_until(lambda: run.process.poll() is not None)
    assert not checkpoints(folder / "checkpoints")
    return max(each.read_bytes().count(b'"type":"iteration"') for each in folder.glob("events/*.jsonl"))


@pytest.mark.parametrize(("before", "after"), [("", SHARDS), (SHARDS, "")], ids=["into shards", "out of shards"])
def test_copies_fit_whether_the_optimizer_is_in_shards_or_not_to_the_bit(tmp_path, start, before, after):
    folder, other = tmp_path / "run", tmp_path / "other"
    iterations = left_in_memory(start, folder, before) + 5
    run = start(words(folder, iterations, "--resume", *KEEP, keys=after))
    assert run.ended() == 0, run.output
    assert any(b"is taken from this host's keeper" in each.read_bytes() for each in folder.glob("events/*.jsonl"))
    assert not is_kept(last_token(folder))
    undisturbed = start(words(other, iterations))
    assert undisturbed.ended() == 0, undisturbed.output
    found, expected = (data_digests(checkpoints(each / "checkpoints")[-1] / shard(0, 0)) for each in (folder, other))
    assert found == expected


def test_keepers_take_what_a_start_puts_though_no_recording_tells_the_views_before_it(tmp_path, start):
    folder = tmp_path / "run"
    run = start(words(folder, 100_000, *KEEP))
    run.wait_for("iteration 5/")
    for each in run.processes("^recycle: W1_0"):
        os.kill(each, signal.SIGKILL)
    wait_until(lambda: any(each.epoch > 0 and each.hosts for each in copies(folder)))
    run.kill()
    for each in folder.glob("events/*"):
        each.unlink()
    again = start(words(folder, 100_000, "--resume", *KEEP))
    wait_until(lambda: len(copies(folder)) > 5 or again.process.poll() is not None)
    again.kill()
    dismiss(last_token(folder))
    found = copies(folder)
    assert found, again.output
    assert all(each.hosts for each in found), again.output


def copies(folder):
    """What a run's servers have said of each version that they kept."""
    return [each for each in recorded(folder) if isinstance(each, CopyLine)]


def test_a_start_that_is_refused_leaves_copies_to_one_that_is_not(tmp_path, start):
    folder = tmp_path / "run"
    iterations = left_in_memory(start, folder) + 5
    half = words(folder, iterations, "--resume", *KEEP)
    with (folder.parent / "model.toml").open("a") as model:
        model.write("bf16 = true\n")
    refused = start(half)
    assert refused.ended() == 2
    assert refused.output.splitlines()[-1].endswith(
        "has in memory: its bf16 is False, and this run's is True: go on with the same, or start a new run in another "
        "folder"
    )
    assert is_kept(last_token(folder))
    run = start(words(folder, iterations, "--resume", *KEEP))
    assert run.ended() == 0, run.output
    assert not is_kept(last_token(folder))


def test_a_start_that_fails_before_an_iteration_ends_the_keeper_that_it_has_started(tmp_path, monkeypatch, short_text):
    def fail(*_):
        raise ValueError("no step can be made")

    monkeypatch.setattr(GptServer, "iterate", fail)
    run = Trained(tmp_path / "run", redundancy=Redundancy.parse("copies=1"))
    assert "checkpoint" in run.error, run.story
    assert not is_kept(last_token(tmp_path / "run"))
