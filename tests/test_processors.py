"""Processes that compute end with their block, whatever leaves it."""

import threading
import time
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool

import pytest

from recycle.processors import pool


@pytest.mark.parametrize("wait", [lambda futures: futures[0].result(), lambda futures: next(as_completed(futures))])
def test_an_error_ends_what_computes_and_what_waits(monkeypatch, wait):
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    waiting = []

    def interrupted():
        with pool(2) as executor:
            done = executor.submit(int)
            waiting.extend(executor.submit(time.sleep, 1000) for _ in range(8))
            wait([done, *waiting])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not failed
    for future in waiting:
        with pytest.raises(BrokenProcessPool):
            future.result()
