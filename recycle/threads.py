"""Threads and processes, of which the system gives a user, or a container, only so many."""

import atexit
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from recycle.errors import UserError

_P = ParamSpec("_P")
_R = TypeVar("_R")

PATIENCE = 20.0
"""Seconds for which a thread is waited for: others end meanwhile. A member that waits longer counts as dead."""

_PAUSE = 0.05


class NoneLeft(OSError):
    """The system gives no more of them.

    Args:
        kind: of what.
        number: of the system's error, which says what it lacks.
    """

    def __init__(self, kind: str, number: int = errno.EAGAIN) -> None:
        if number == errno.ENOMEM:
            text = f"the system has no memory for more {kind}: free some, or let it promise more (vm.overcommit_ratio)"
        else:
            remedy = "raise ulimit -u, and the limit of processes of the container (pids.max)"
            text = f"the system gives no more {kind}: {remedy}"
        super().__init__(number, text)

    def __str__(self) -> str:
        return str(self.strerror)


def start_thread(body: Callable[[], object], name: str, patience: float = PATIENCE) -> threading.Thread:
    """Run something in a thread that does not outlive the process.

    Args:
        body: what it runs.
        name: its name.
        patience: seconds for which one is waited for where the system gives none.

    Raises:
        NoneLeft: none came.
    """
    thread = threading.Thread(target=body, name=name, daemon=True)
    _start(thread, patience)
    return thread


def run_apart(body: Callable[[], object], name: str, ended_within: float = 0.0) -> None:
    """Run something in a thread of its own; where the system gives none, in this one.

    Args:
        body: what is run.
        name: of the thread.
        ended_within: seconds for which the end of this process waits for it.
    """

    def run() -> None:
        body()
        atexit.unregister(thread.join)

    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        _start(thread, 0)
    except NoneLeft:
        body()
        return
    # Not before: the process may be at its end, and join whatever is there.
    atexit.register(thread.join, ended_within)
    if not thread.is_alive():
        atexit.unregister(thread.join)


def start_call(call: Callable[[], _R], name: str) -> Future[_R]:
    """Make a call in a thread of its own; where the system gives none, in this one.

    Args:
        call: what is called.
        name: of the thread.

    Returns:
        What comes of it: what it gives, or raises.
    """
    made = Future[_R]()

    def run() -> None:
        try:
            made.set_result(call())
        except Exception as error:
            made.set_exception(error)

    run_apart(run, name)
    return made


class CallsThatMayHang:
    """Calls of any threads, one at a time, each in a thread of its own; one that hangs is left to itself.

    Args:
        patience: seconds for which a call is waited for.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        # A signal's handler may make one during another.
        self._makes = threading.RLock()
        self._last = Future[None]()
        self._last.set_result(None)

    def make(self, call: Callable[[], None]) -> None:
        """Make a call; where the system gives no thread, in this one.

        Raises:
            TimeoutError: the call takes too long, or the one before it does, and then this one is not made.
            Exception: what the call has raised.
        """
        with self._makes:
            if not self._last.done():
                raise self._hangs()
            self._last = start_call(call, "makes a call that may hang")
            if not wait([self._last], self._patience).done:
                raise self._hangs()
            self._last.result()

    def _hangs(self) -> TimeoutError:
        return TimeoutError(errno.ETIMEDOUT, f"no answer within {self._patience:g} s")


def map_apart(call: Callable[..., _R], most: int, name: str, *given: Sequence[Any]) -> list[_R]:
    """What a call gives for each of some things, in their order; where the system gives no threads, one by one.

    Args:
        call: gets one of each.
        most: in so many threads at once.
        name: of the threads.
        given: the things.
    """
    with ThreadPoolExecutor(most, name) as threads:
        results = None
        # Threads are started here; what a call raises comes with its result.
        with suppress(RuntimeError):
            results = threads.map(call, *given)
        if results is not None:
            return [*results]
    return [*map(call, *given)]


@contextmanager
def named_shortage() -> Iterator[None]:
    """What starts threads in a library fails for want of them as what starts them here.

    Raises:
        NoneLeft: there are none.
    """
    try:
        yield
    except (RuntimeError, UserError) as error:
        if os.strerror(errno.EAGAIN) in str(error):
            raise NoneLeft("threads") from error
        raise


def needing_threads(count: int) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """What starts so many threads in a library is done again, when there are so many, where it got none.

    The first time nothing is looked at, because that takes longer than most calls. A library that gets some of its
    threads, and not all, may end the process.

    Raises:
        NoneLeft: in the function that is made: there were too few for too long.
    """

    def decorated(make: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(make)
        def wrapper(*arguments: _P.args, **keywords: _P.kwargs) -> _R:
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    with named_shortage():
                        return make(*arguments, **keywords)
                except NoneLeft:
                    if time.monotonic() >= deadline:
                        raise
                time.sleep(_PAUSE)
                _await(count)

        return wrapper

    return decorated


def _await(count: int) -> None:
    over = threading.Event()
    started: list[threading.Thread] = []
    try:
        while len(started) < count:
            started.append(start_thread(over.wait, "one that is tried"))
    finally:
        over.set()
        for each in started:
            each.join()


def _start(thread: threading.Thread, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            return thread.start()
        except RuntimeError:
            if time.monotonic() >= deadline:
                raise NoneLeft("threads") from None
        time.sleep(_PAUSE)
