"""A checkpoint whose metadata lies runs nothing, and takes no more memory than its files do."""

import os
import pickle
from pathlib import Path

import msgspec
import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata

from recycle.runtime.checkpoint_folders import find_damage
from recycle.runtime.errors import RunError
from recycle.runtime.step.checkpoint import read_stage, write_shard
from recycle.runtime.step.stage_reader import METADATA, StageReader

STATE = {
    "parameter/a": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "parameter/b": torch.ones(5, dtype=torch.bfloat16),
    "optimizer/step/a": torch.tensor(3, dtype=torch.int64),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shard(tmp_path / "stage-0", STATE)
    return tmp_path / "stage-0"


def test_what_was_written_is_read(folder: Path) -> None:
    found = read_stage(folder.parent, "stage-0")
    assert found.keys() == STATE.keys()
    assert all(torch.equal(found[name], STATE[name]) and found[name].dtype == STATE[name].dtype for name in STATE)


class Harm:
    """What a pickle of this does when it is read."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.made = function, arguments

    def __reduce__(self) -> object:
        return self.made


HARMS = [
    lambda path: Harm(os.mkdir, str(path)),
    lambda path: Harm(eval, f"__import__('os').mkdir({str(path)!r})"),
    lambda path: Harm(torch.load, str(path)),
    lambda path: Harm(Path.mkdir, path),
    lambda path: Harm(getattr, "torch", "load"),
]


@pytest.mark.parametrize("harm", HARMS, ids=["os", "eval", "torch", "method", "getattr"])
@pytest.mark.parametrize("place", ["alone", "within"])
def test_nothing_is_run(folder: Path, tmp_path: Path, harm, place: str) -> None:
    path = tmp_path / "harm"
    content: object = harm(path)
    if place == "within":
        known = StageReader(folder).read_metadata()
        content = Metadata(known.state_dict_metadata, storage_data=known.storage_data, planner_data=content)
    (folder / METADATA).write_bytes(pickle.dumps(content))
    with pytest.raises(RunError, match="which torch does not write there"):
        read_stage(tmp_path, "stage-0")
    assert not path.exists()


def rewrite(folder: Path, change) -> None:
    known = StageReader(folder).read_metadata()
    known.storage_meta = None
    change(known)
    (folder / METADATA).write_bytes(pickle.dumps(known))


def grow(known: Metadata) -> None:
    known.state_dict_metadata["parameter/a"].size = torch.Size([1 << 40])


def lead_out(known: Metadata) -> None:
    for each in known.storage_data.values():
        each.relative_path = "../stage-0/__0_0.distcp"


@pytest.mark.parametrize(("change", "message"), [(grow, "and there are"), (lead_out, "names the file")])
def test_sizes_and_places_are_those_of_the_files(folder: Path, change, message: str) -> None:
    rewrite(folder, change)
    with pytest.raises(RunError, match=message):
        read_stage(folder.parent, "stage-0")


@pytest.mark.parametrize("name", ["/dev/zero", "../../outside", "pipe"])
def test_digests_name_files_of_the_checkpoint(folder: Path, name: str) -> None:
    (folder.parent.parent / "outside").write_bytes(b"")
    os.mkfifo(folder / "pipe")
    (folder / "digests.json").write_bytes(msgspec.json.encode({name: "0" * 64}))
    (folder.parent / "checkpoint.json").write_bytes(
        msgspec.json.encode({"version": 2, "step": 1, "settings": {}, "shards": ["stage-0"]})
    )
    assert "is no file of this checkpoint" in find_damage(folder.parent)
