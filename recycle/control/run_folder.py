"""The folder of a run: it belongs to one run that is alive, and a copy of it is another folder.

All processes of a run hold a lock in its folder. The kernel lets go of it when the last of them has ended, in whatever
way; no process that was forked has to know of it.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from recycle.control.errors import ControlError

LOCK = "lock"
"""The name of the file, which stays empty."""

PATIENCE, LOOK = 5.0, 0.1
"""Seconds that the processes of a run which was killed may take to end, and between two looks."""


@contextmanager
def taken(folder: Path) -> Iterator[None]:
    """Have a folder for a run that this process begins. What it forks has it as well.

    Raises:
        ControlError: another run is alive in it, or it cannot be written.
    """
    with _opened(folder) as lock:
        deadline = time.monotonic() + PATIENCE
        while not _is_free(lock):
            if time.monotonic() > deadline:
                raise ControlError(
                    f"{folder}: a run is alive in it; wait for its end, or give this one another folder with --output"
                )
            time.sleep(LOOK)
        _share(lock)
        yield


@contextmanager
def shared(folder: Path) -> Iterator[None]:
    """Take part in the run that has a folder, which stays its own until this process has ended too.

    Raises:
        ControlError: the folder cannot be written.
    """
    with _opened(folder) as lock:
        _share(lock)
        yield


def identity(folder: Path) -> str:
    """What tells the folder of a run from every copy of it, on all hosts that share it.

    The kernel sets the time of a file's last change, and no copy can have it.

    Raises:
        ControlError: the folder cannot be written.
    """
    with _opened(folder) as lock:
        found = os.fstat(lock)
        return f"{found.st_ino}-{found.st_ctime_ns}"


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise ControlError(f"{folder}: cannot be written: {error.strerror}; choose another folder") from error
    try:
        yield lock
    finally:
        os.close(lock)


def _is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def _share(lock: int) -> None:
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_SH)
