"""The folder of a run: it belongs to one run that is alive, and a copy of it is another folder.

All processes of a run hold a lock on its folder. The kernel lets go of it when the last of them has ended, in whatever
way; no process that was forked has to know of it.
"""

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from recycle.control.membership.errors import ControlError
from recycle.files import own_folder

LOCK = "lock"
"""The name of a file that is locked as well, and stays empty: not every network's file system locks folders."""

PATIENCE, LOOK = 5.0, 0.1
"""Seconds that the processes of a run which was killed may take to end, and between two looks."""


def require_free(folder: Path, option: str = "--output") -> None:
    """Refuse a folder in which a run is alive before anything slow is done; makes nothing, and takes nothing.

    Args:
        folder: which; it need not be there.
        option: with which the user has given it.

    Raises:
        ControlError: a run is alive in it.
    """
    with ExitStack() as opened:
        locks = []
        for path in (folder, folder / LOCK):
            with suppress(OSError):  # what is wrong with it is said when it is taken
                # A pipe would wait for a writer.
                locks.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
                opened.callback(os.close, locks[-1])
        _await_free(locks, folder, option)


@contextmanager
def taken(folder: Path, option: str = "--output") -> Iterator[None]:
    """Have a folder for a run that this process begins. What it forks has it as well.

    Args:
        folder: which.
        option: with which the user has given it.

    Raises:
        ControlError: another run is alive in it, it cannot be written, or other users may exchange what is in it.
    """
    with _opened(folder) as locks:
        _await_free(locks, folder, option)
        _share(locks)
        yield


@contextmanager
def shared(folder: Path) -> Iterator[None]:
    """Take part in the run that has a folder, which stays its own until this process has ended too.

    Raises:
        ControlError: the folder cannot be written.
    """
    with _opened(folder) as locks:
        _share(locks)
        yield


def identity(folder: Path) -> str:
    """What tells the folder of a run from every copy of it, on all hosts that share it.

    The kernel sets the time of a file's last change, and no copy can have it.

    Raises:
        ControlError: the folder cannot be written.
    """
    with _opened(folder) as (_, lock):
        found = os.fstat(lock)
        return f"{found.st_ino}-{found.st_ctime_ns}"


@contextmanager
def _opened(folder: Path) -> Iterator[tuple[int, int]]:
    """What is locked of a folder: itself, so that no file need stay there, and a file."""
    with ExitStack() as opened:

        def open_(path: Path, flags: int) -> int:
            handle = os.open(path, flags, 0o600)
            opened.callback(os.close, handle)
            return handle

        try:
            own_folder(folder)
            locks = open_(folder, os.O_RDONLY | os.O_DIRECTORY), open_(folder / LOCK, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise ControlError(f"{folder}: cannot be written: {error.strerror}; choose another folder") from error
        _require_own(folder, locks[0])
        yield locks


def _require_own(folder: Path, handle: int) -> None:
    """Refuse a folder in which another user may exchange the run's files. Its group may: who shares one is trusted.

    Raises:
        ControlError: it is.
    """
    found = os.fstat(handle)
    if found.st_mode & stat.S_IWOTH:
        raise ControlError(
            f"{folder}: every user of this machine may write to it, and so exchange the run's files; choose another "
            f"folder, or take that away with chmod o-w {folder}"
        )
    if found.st_uid not in (0, os.geteuid()) and found.st_uid != _owner_of_new(folder):
        raise ControlError(
            f"{folder}: it belongs to another user (number {found.st_uid}), who could exchange the run's files; choose "
            f"another folder, or make it yours with chown"
        )


def _owner_of_new(folder: Path) -> int:
    """As whom this process writes there: servers of files may know it as another user than this machine does."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_uid


def _await_free(locks: Sequence[int], folder: Path, option: str) -> None:
    """Take all locks, once the processes of a run that was killed have ended.

    Raises:
        ControlError: another run is alive in the folder.
    """
    deadline = time.monotonic() + PATIENCE
    while not _are_free(locks):
        if time.monotonic() > deadline:
            raise ControlError(
                f"{folder}: a run is alive in it; wait for its end, or give this one another folder with {option}"
            )
        time.sleep(LOOK)


def _are_free(locks: Sequence[int]) -> bool:
    """Whether nobody has one of them; then this process has all."""
    for number, lock in enumerate(locks):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            for had in locks[:number]:
                _change(had, fcntl.LOCK_UN)
            return False
        except OSError:
            pass  # a file system that has no such locks
    return True


def _share(locks: Sequence[int]) -> None:
    for lock in locks:
        _change(lock, fcntl.LOCK_SH)


def _change(lock: int, operation: int) -> None:
    with suppress(OSError):
        fcntl.flock(lock, operation)
