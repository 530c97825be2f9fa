"""The lifeline: how an agent learns of its worker's death at the first moment of it.

A process that is killed is taken apart before anybody is told: its memory first, then its connections, and its parent
last. Where memory is large, that takes tenths of a second. But before all that, the kernel hands over the robust locks
that its threads hold (robust futexes, see ``man 2 get_robust_list``). So an agent learns of
the death within milliseconds however much memory the worker had.
"""

import ctypes
import errno
import mmap
import os
from contextlib import suppress

from recycle.threads import NoneLeft, start_thread

_SHARED = 1
_ROBUST = 1
# Both are larger in no C library.
_MUTEX_SIZE, _ATTRIBUTE_SIZE = 256, 64
# What the worker says beside the lock.
_HELD, _FINISHED = b"\1", b"\2"


class Lifeline:
    """A lock in memory that is shared over a fork: the worker holds it for life, and the agent waits for it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._library = ctypes.CDLL(None)
        self._mutex = (ctypes.c_char * _MUTEX_SIZE).from_buffer(self._memory)
        self._said = ctypes.c_char.from_buffer(self._memory, _MUTEX_SIZE)
        attribute = (ctypes.c_char * _ATTRIBUTE_SIZE)()
        self._call("pthread_mutexattr_init", attribute)
        self._call("pthread_mutexattr_setpshared", attribute, _SHARED)
        self._call("pthread_mutexattr_setrobust", attribute, _ROBUST)
        self._call("pthread_mutex_init", self._mutex, attribute)

    def hold(self) -> None:
        """In the worker: hold it from now on. It belongs to the thread that calls this, which must be the main one."""
        self._call("pthread_mutex_lock", self._mutex)
        self._said.value = _HELD

    def finish(self) -> None:
        """In the worker, as the last thing it does: it ends by itself, and not by something that ends the process."""
        self._said.value = _FINISHED

    @property
    def is_held(self) -> bool:
        """Whether the worker has taken it yet."""
        return self._said.value in (_HELD, _FINISHED)

    @property
    def is_finished(self) -> bool:
        """Whether the worker has come to its end."""
        return self._said.value == _FINISHED

    def watch(self) -> int:
        """In the agent, once it is held: a file descriptor that becomes readable when the worker's main thread ends.

        The caller closes it, whenever it likes: the thread that writes has an end of its own, because a number that was
        closed may be another file's by the time it comes to write.

        Raises:
            NoneLeft: there is no thread for it.
        """
        reader, writer = os.pipe()

        def wait() -> None:
            self._call("pthread_mutex_lock", self._mutex, allowed=errno.EOWNERDEAD)
            with suppress(BrokenPipeError):
                os.write(writer, b"\0")
            os.close(writer)

        try:
            start_thread(wait, "lifeline", 0)
        except NoneLeft:
            os.close(reader)
            os.close(writer)
            raise
        return reader

    def _call(self, name: str, *arguments: object, allowed: int = 0) -> None:
        result = getattr(self._library, name)(*arguments)
        assert result in (0, allowed), f"{name}: {os.strerror(result)}"


def exit_status(pid: int) -> int | None:
    """The status with which a process ends, also while it is being taken apart; None if that cannot be seen.

    Returns:
        As ``os.waitstatus_to_exitcode`` gives it.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - of the kernel's files, not the user's
            return os.waitstatus_to_exitcode(int(file.read().split()[-1]))
    except (OSError, ValueError):
        return None
