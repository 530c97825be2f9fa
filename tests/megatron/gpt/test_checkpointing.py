"""A server's part in a checkpoint, without the others."""

import threading
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from recycle.job import Server
from recycle.megatron.gpt import checkpointing
from recycle.megatron.gpt.checkpointing import Checkpointing
from recycle.runtime.checkpoint_folders import MANIFEST, Manifest, folder_of
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.step.checkpoint import VERSION


def test_all_looks_at_a_disk_are_watched_and_what_keepers_write_is_not(monkeypatch, tmp_path):
    watched, seen = [], []

    @contextmanager
    def watch(what):
        watched.append(what)
        yield
        watched.clear()

    def note(*_):
        seen.append([*watched])
        return tmp_path

    monkeypatch.setattr(checkpointing, "give_up", note)
    monkeypatch.setattr(checkpointing, "folder_of", note)
    server = Server(0, 0)
    saving = SimpleNamespace(
        _run=SimpleNamespace(checkpoints=tmp_path),
        _rank=SimpleNamespace(is_first=True),
        _server=server,
        _do_together=lambda network, step, part: part(),
        _sum=lambda network, tensor: tensor,
        from_memory=SimpleNamespace(finish=note),
        watched=watch,
    )
    Checkpointing.save(saving, 8, SimpleNamespace(view=SimpleNamespace(servers=[server])))
    assert seen == [[], ["a look at checkpoints"], ["a look at checkpoints"]]
    assert not saving._owed


def test_a_server_that_writes_for_long_says_so_once(monkeypatch):
    monkeypatch.setattr(checkpointing, "DISK", 0.0)
    told, over, meetings = [], threading.Event(), count()

    def meet(_, tensor):
        if next(meetings) == 3:
            over.set()
        return tensor

    run = SimpleNamespace(durations=SimpleNamespace(transfer=0.1))
    reporter = SimpleNamespace(tell=told.append)
    saving = SimpleNamespace(
        _run=run, _server=Server(1, 0), _reporter=reporter, _sum=meet, _has_failed=lambda *_: False
    )
    Checkpointing._do_together(saving, None, 8, lambda: over.wait(60))
    assert [each.text for each in told] == ["checkpoint: W1_0 has been writing step 8 for 0 s, and all servers wait"]


@pytest.fixture
def away(tmp_path, monkeypatch):
    """A folder of checkpoints whose file system fails."""
    root = tmp_path / "checkpoints"

    def failing(ask):
        def answer(path, *words, **named):
            if path.is_relative_to(root):
                raise OSError(116, "Stale file handle")
            return ask(path, *words, **named)

        return answer

    for name in ("iterdir", "exists", "rename", "mkdir"):
        monkeypatch.setattr(Path, name, failing(getattr(Path, name)))
    return root


def saving_alone(root, told):
    """Checkpoints of a server that is alone in its run."""
    server = Server(0, 0)
    run = SimpleNamespace(checkpoints=root, iterations=9, keep=2, durations=SimpleNamespace(transfer=3.0))
    saving = Checkpointing.__new__(Checkpointing)
    saving.__dict__ |= {
        "_run": run,
        "_settings": {},
        "_server": server,
        "_cut": checkpointing.Cut(1, 1),
        "_rank": SimpleNamespace(is_first=True, number=0, size=1),
        "_training": SimpleNamespace(job=None, chunks=[0], stage_states=lambda *_: [{}]),
        "_reporter": SimpleNamespace(tell=lambda line: told.append(line.text)),
        "_owed": False,
        "from_memory": None,
        "watched": lambda _: nullcontext(),
    }
    alone = SimpleNamespace(sum=lambda _: None)
    view = SimpleNamespace(servers=[server], epoch=0)
    return saving, SimpleNamespace(view=view, all=alone, ranks=alone)


def test_a_file_system_that_fails_at_a_due_checkpoint_is_a_warning_and_it_is_tried_again(monkeypatch, away):
    monkeypatch.setattr(checkpointing, "live_holders", lambda *_: {0: [Server(0, 0)]})
    told = []
    saving, network = saving_alone(away, told)
    saving.save(8, network)
    assert saving.is_owed
    assert [each.partition(": ")[0] for each in told] == ["checkpoint"]
    assert "cannot be written: Stale file handle" in told[0]


def test_nobody_has_a_checkpoint_in_a_folder_that_cannot_be_listed(away):
    saving, _ = saving_alone(away, [])
    assert saving.durable() is None


def test_a_damaged_checkpoint_that_cannot_be_renamed_breaks_the_view_and_ends_nobody(away):
    saving, _ = saving_alone(away, [])
    with pytest.raises(ConnectionLost, match=r"checkpoint\.json"):
        saving.load(7)


@pytest.mark.parametrize("lie", [{}, {"stages": "2"}, {"stages": 5}])
def test_a_checkpoint_whose_manifest_lies_is_passed_over_and_set_aside(tmp_path, lie):
    told = []
    saving, _ = saving_alone(tmp_path, told)
    for step, settings in ((1, {"stages": 2}), (2, lie)):
        folder = folder_of(tmp_path, step)
        folder.mkdir()
        manifest = Manifest(VERSION, step, {"layers": 4} | settings)
        (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    assert saving.durable() == 1
    with pytest.raises(ConnectionLost, match="its manifest says that 4 layers are in"):
        saving.load(2)
    assert len(told) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["damaged-step-00000002", "step-00000001"]


def test_a_checkpoint_in_the_folder_of_another_step_is_passed_over(tmp_path):
    saving, _ = saving_alone(tmp_path, [])
    for step, name in ((1, 1), (7, 2)):
        folder = folder_of(tmp_path, name)
        folder.mkdir()
        (folder / MANIFEST).write_bytes(msgspec.json.encode(Manifest(VERSION, step, {"layers": 4, "stages": 2})))
    assert saving.durable() == 1
