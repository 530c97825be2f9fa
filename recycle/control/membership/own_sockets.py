"""The sockets of this process, whatever has opened them."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SOCKETS = "/proc/self/fd"


def own_sockets() -> Iterator[tuple[int, int]]:
    """Each socket's file descriptor and inode. By the time that it is looked at, it may be closed."""
    for name in os.listdir(SOCKETS):  # noqa: PTH208 - training stands still while this is done
        # An error is the listing's own descriptor, or one that is closed.
        with suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                yield int(name), status.st_ino


@contextmanager
def looked_at(number: int) -> Iterator[socket.socket]:
    """A socket by its file descriptor, which stays as it is.

    It must not be duplicated: what gloo closes meanwhile would stay open, and with sockets that were duplicated gloo
    has been seen to end the process.

    Raises:
        OSError: it is closed, or no socket.
    """
    found = socket.socket(fileno=number)
    try:
        yield found
    finally:
        found.detach()
