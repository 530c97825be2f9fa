"""A server's part in a checkpoint, without the others."""

import threading
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace

from recycle.job import Server
from recycle.megatron.gpt import checkpointing
from recycle.megatron.gpt.checkpointing import Checkpointing


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
