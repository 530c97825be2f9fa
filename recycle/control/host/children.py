"""Processes that are forked from another one, and do not outlive it."""

import ctypes
import errno
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from recycle.threads import NoneLeft

_SET_PARENT_DEATH_SIGNAL = 1


def fork_below(body: Callable[[], int | None]) -> int:
    """Run something in a process that is killed when this one dies; this one must have no other threads.

    Args:
        body: gives the exit status, none for 0. If it raises, that is 1, and no reason is printed.

    Returns:
        The number of the process.

    Raises:
        NoneLeft: the system gives no process.
    """
    own, process = os.getpid(), fork()
    if process:
        return process
    status = 1
    try:
        die_with(own)
        status = body() or 0
    finally:
        # Not the usual way out: destroying process groups whose other ends are gone can take seconds.
        os._exit(status)


def fork() -> int:
    """The same as ``os.fork``, with a remedy where that fails.

    Raises:
        NoneLeft: the system gives no process.
    """
    try:
        return os.fork()
    except OSError as error:
        raise NoneLeft("processes", error.errno or errno.EAGAIN) from error


def die_with(parent: int) -> None:
    """From now on, this process is killed when the one that forked it dies; at once if it is dead already.

    Args:
        parent: that one.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def ignore_signals() -> None:
    """No process between the one that the user has started and the workers ends before these."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def process_state(process: int) -> str:
    """The letter by which the kernel calls what a process does; none if it is not there, or that cannot be read."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    return ""
