"""SIGTERM and Ctrl-C, as the process that a user or a cluster has started takes them.

The first one is passed on to the workers below, which leave between two iterations; the second one ends the process at
once. Where nobody below can leave, the first one does.
"""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from recycle.errors import EndedAtOnce

TAKEN = (signal.SIGTERM, signal.SIGINT)


class EndSignals:
    """Takes the signals within a ``with`` block of the main thread; in another thread it takes none.

    Args:
        pass_on: called with the first one, from the signal's handler; whether somebody below has heard it.

    Attributes:
        number: of the first one; 0 as long as there was none.
    """

    def __init__(self, pass_on: Callable[[], bool]) -> None:
        self.number = 0
        self._pass_on = pass_on
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in TAKEN}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def name(self) -> str:
        """Of the first one."""
        return signal.Signals(self.number).name

    def _take(self, number: int, _: FrameType | None) -> None:
        again, self.number = bool(self.number), self.number or number
        if again or not self._pass_on():
            raise EndedAtOnce(f"{self.name}: ended at once", self.number)


def tell_to_leave(process: int, number: int = signal.SIGTERM) -> bool:
    """Tell a worker to leave; whether there is one.

    Args:
        process: the worker's.
        number: the signal that it takes for that.
    """
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True


def be_told_to_leave(leave: Callable[[str], None], but: int | None = None) -> None:
    """In a worker: leave with SIGTERM. A terminal's Ctrl-C is for the process that the user has started.

    Args:
        leave: called with the signal's name, from its handler.
        but: a signal that the worker takes for something else.
    """
    if but != signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if but != signal.SIGTERM:
        signal.signal(signal.SIGTERM, lambda number, _: leave(signal.Signals(number).name))
