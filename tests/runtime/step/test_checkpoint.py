"""Checkpoints on disk: which are kept, which are whole, and taking over those of another run."""

import os
import resource
import shutil
from pathlib import Path

import pytest
import torch

from harness.digests import data_digests
from harness.local import launch
from recycle.errors import RunFailed, UserError
from recycle.runtime.checkpoint_folders import (
    MANIFEST,
    Manifest,
    checkpoints,
    find_damage,
    folder_of,
    require_unfinished,
)
from recycle.runtime.step import checkpoint
from recycle.runtime.step.checkpoint import (
    VERSION,
    adopt,
    attempt_folder,
    complete,
    give_up,
    read_manifest,
    set_aside,
    write_shard,
)

SHARDS = ("stage-0/tensor-0", "stage-1/tensor-0")


def write(root, step, keep=2, attempt="", written=SHARDS):
    partial = attempt_folder(root, step, attempt)
    for place, shard in enumerate(written):
        write_shard(partial / shard, {"weight": torch.full((50,), float(step + place))})
    complete(root, Manifest(VERSION, step, {"hidden": 8}, SHARDS), partial, keep)


def steps(root):
    return [int(each.name.removeprefix("step-")) for each in checkpoints(root)]


def test_all_of_one_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    synced, rename, sync = set(), Path.rename, os.fsync

    def note(handle):
        synced.add(os.fstat(handle).st_ino)
        sync(handle)

    def require_synced(folder, name):
        assert [each for each in (folder, *folder.rglob("*")) if each.stat().st_ino not in synced] == []
        return rename(folder, name)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "rename", require_synced)
    write(tmp_path / "other", 3)
    assert (tmp_path / "other").stat().st_ino in synced
    # On another disk nothing can be linked.
    synced.clear()
    monkeypatch.setattr(checkpoint, "_link", shutil.copy2)
    (tmp_path / "mine").mkdir()
    adopt(tmp_path / "other" / "step-00000003", tmp_path / "mine")


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_the_newest_are_kept(tmp_path, keep):
    for step in range(1, 7):
        write(tmp_path, step, keep)
    assert steps(tmp_path) == list(range(7 - keep, 7))


def test_a_folder_that_is_removed_while_it_is_looked_at_holds_none(tmp_path, monkeypatch):
    monkeypatch.setattr("pathlib.Path.is_dir", lambda _: True)
    root = tmp_path / "removed"
    assert checkpoints(root) == []
    give_up(root)
    (tmp_path / "file").touch()
    assert checkpoints(tmp_path / "file") == []


def test_a_folder_that_cannot_be_listed_harms_nobody_who_writes_or_tidies_up(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(116, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", fail)
        give_up(tmp_path)
    write(tmp_path, 1, keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "checkpoints", fail)
        write(tmp_path, 2, keep=1)
    assert steps(tmp_path) == [1, 2]
    write(tmp_path, 3, keep=1)
    assert steps(tmp_path) == [3]


@pytest.mark.parametrize("left", [(), SHARDS[:1]], ids=["all", "the last one"])
def test_one_whose_parts_were_removed_cannot_be_completed_and_says_so(tmp_path, left):
    with pytest.raises(RunFailed, match=r"^checkpoint: .*step-00000003 cannot be written: No such file or directory;"):
        write(tmp_path, 3, written=left)
    assert steps(tmp_path) == []


def test_a_leader_that_comes_too_late_leaves_what_others_have_made_and_make(tmp_path):
    write(tmp_path, 3, attempt="1")
    before = data_digests(folder_of(tmp_path, 3) / SHARDS[0])
    other = attempt_folder(tmp_path, 3, "2")
    other.mkdir()
    write(tmp_path, 3, attempt="0", written=SHARDS[::-1])
    assert data_digests(folder_of(tmp_path, 3) / SHARDS[0]) == before
    assert sorted(tmp_path.iterdir()) == [other, folder_of(tmp_path, 3)]
    write(tmp_path, 4)
    assert sorted(tmp_path.iterdir()) == [folder_of(tmp_path, 3), folder_of(tmp_path, 4)]


def test_one_that_the_system_has_no_room_for_says_so_in_its_words(tmp_path):
    def body(member):
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, most))
        with pytest.raises(RunFailed, match=r"tensor-0 cannot be written: File too large; make room or choose another"):
            write_shard(tmp_path / "stage-0/tensor-0", {"weight": torch.zeros(5000)})

    launch(1, body)


def data(folder):
    return sorted(folder.rglob("*.distcp"))


def cut(folder):
    os.truncate(data(folder)[0], 10)


def flip(folder):
    path = data(folder)[-1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def remove(folder):
    data(folder)[0].unlink()


def garble(folder):
    (folder / MANIFEST).write_text("{")


@pytest.mark.parametrize("damage", [cut, flip, remove, garble])
def test_whatever_is_not_as_it_was_written_is_found(tmp_path, damage):
    write(tmp_path, 1)
    (folder,) = checkpoints(tmp_path)
    assert find_damage(folder) == ""
    damage(folder)
    assert str(folder) in find_damage(folder)
    assert set_aside(folder).is_dir()
    assert steps(tmp_path) == []


def test_a_run_is_finished_by_its_newest_whole_checkpoint(tmp_path):
    for step in (3, 5):
        write(tmp_path, step)
    found = checkpoints(tmp_path)
    require_unfinished(found, 6)
    with pytest.raises(UserError, match=r"iterations is 5, and .*step-00000005 has 5 of them already"):
        require_unfinished(found, 5)
    cut(found[-1])
    require_unfinished(found, 4)
    with pytest.raises(UserError, match="step-00000003 has 3 of them already"):
        require_unfinished(found, 3)
    garble(found[-1])
    require_unfinished(found, 4)
    require_unfinished([], 1)


def test_a_checkpoint_of_another_run_is_taken_over_and_the_damaged_passed_by(tmp_path):
    other, mine = tmp_path / "other" / "checkpoints", tmp_path / "mine" / "checkpoints"
    mine.mkdir(parents=True)
    for step in (3, 4):
        write(other, step)
    cut(checkpoints(other)[-1])
    adopt(tmp_path / "other", mine)
    assert steps(mine) == [3]
    # What becomes of the other run is nothing to this one.
    for path in data(other):
        path.unlink()
    assert find_damage(checkpoints(mine)[0]) == ""


def test_what_two_processes_set_aside_at_once_is_there_as_one_has_set_it_aside(tmp_path, monkeypatch):
    for _ in range(2):
        write(tmp_path, 3)
        aside = set_aside(folder_of(tmp_path, 3))
        # Another one has looked before.
        with monkeypatch.context() as patch:
            patch.setattr(Path, "exists", lambda _: True)
            assert set_aside(folder_of(tmp_path, 3)) == aside
        assert list(tmp_path.iterdir()) == [aside]
        assert (aside / MANIFEST).is_file()


def test_where_an_earlier_one_cannot_be_removed_the_damaged_one_is_still_set_aside(tmp_path, monkeypatch):
    write(tmp_path, 3)
    first = set_aside(folder_of(tmp_path, 3))
    write(tmp_path, 3)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        second = set_aside(folder_of(tmp_path, 3))
    give_up(tmp_path)
    assert first != second
    assert sorted(tmp_path.iterdir()) == [first, second]
    assert all((each / MANIFEST).is_file() for each in (first, second))


def test_of_another_run_the_newest_checkpoint_is_taken_over_that_has_no_fault(tmp_path):
    other, mine = tmp_path / "other" / "checkpoints", tmp_path / "mine"
    mine.mkdir()
    for step in (3, 4):
        write(other, step)
    adopt(tmp_path / "other", mine, lambda folder: "it lies" if folder == folder_of(other, 4) else "")
    assert steps(mine) == [3]


@pytest.mark.parametrize("name", ["step-00000003", "the best one"])
def test_a_checkpoint_can_be_named_itself(tmp_path, name):
    other, mine = tmp_path / "other", tmp_path / "mine"
    mine.mkdir()
    for step in (3, 4):
        write(other, step)
    adopt(checkpoints(other)[0].rename(other / name), mine)
    assert steps(mine) == [3]


def test_a_folder_with_the_checkpoint_of_another_step_is_damaged_and_finishes_no_run(tmp_path):
    write(tmp_path, 3)
    lying = checkpoints(tmp_path)[0].rename(folder_of(tmp_path, 2))
    assert find_damage(lying) == f"{lying}: its manifest is of step 3"
    require_unfinished([lying], 3)
    with pytest.raises(UserError, match="its manifest is of step 3"):
        read_manifest(lying, {})


def test_one_that_cannot_be_taken_over_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    mine = tmp_path / "mine"
    mine.mkdir()
    write(tmp_path / "other", 3)
    monkeypatch.setattr(checkpoint, "_link", fail)
    with pytest.raises(UserError, match=r"resume-from: \S*step-00000003 cannot be copied to \S*mine: \S+ \S+ No space"):
        adopt(checkpoints(tmp_path / "other")[0], mine)
    assert list(mine.iterdir()) == []


def test_where_there_is_none_it_is_one_line(tmp_path):
    with pytest.raises(UserError, match="resume-from: there is no whole checkpoint in "):
        adopt(tmp_path, tmp_path)
