"""Waiting for what is received, in a way that can be given up."""

import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue

from torch.distributed import Work

LOOK = 0.05
"""Seconds between two looks whether something will still come."""


class Receipts:
    """Waits for receives in a thread of its own.

    Gloo forgets a receive whose message had begun to arrive when its connection broke: only its time-out wakes who
    waits for it, and no cut of a connection. So another thread waits, which is left to itself if nothing will come.

    Args:
        check: raises when nothing will come any more.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._expected: SimpleQueue[_Receipt | None] = SimpleQueue()
        threading.Thread(target=_wait_for_all, args=(self._expected,), name="receipts", daemon=True).start()
        weakref.finalize(self, self._expected.put, None)

    def wait(self, work: Work, timeout: timedelta) -> None:
        """Wait for a receive.

        Raises:
            ViewBroken: it will never come, says ``check``.
            RuntimeError: it will never come, says gloo.
        """
        receipt = _Receipt(work, timeout)
        self._expected.put(receipt)
        while not receipt.over.acquire(timeout=LOOK):
            self._check()
        if receipt.error:
            raise RuntimeError(receipt.error)


class _Receipt:
    def __init__(self, work: Work, timeout: timedelta) -> None:
        self.work = work
        self.timeout = timeout
        self.error = ""
        self.over = threading.Lock()
        self.over.acquire()


def _wait_for_all(expected: "SimpleQueue[_Receipt | None]") -> None:
    while _wait_for_next(expected):
        pass  # nothing of the last one is kept while the next one is waited for


def _wait_for_next(expected: "SimpleQueue[_Receipt | None]") -> bool:
    receipt = expected.get()
    if receipt is None:
        return False
    try:
        receipt.work.wait(receipt.timeout)
    except RuntimeError as error:
        # The error itself would keep those alive who raise it again, and with them this thread.
        receipt.error = str(error) or "it says nothing"
    receipt.over.release()
    return True
