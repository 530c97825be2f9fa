"""A server's part in a checkpoint, without the others."""

import threading
from itertools import count
from types import SimpleNamespace

from recycle.job import Server
from recycle.megatron.gpt import checkpointing
from recycle.megatron.gpt.checkpointing import Checkpointing


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
