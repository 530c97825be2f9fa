"""How many files and connections a process may have open, and whether that is why something failed."""

import errno
import os
import resource
import socket
import time

_REST = 0.1
"""Seconds until a connection is accepted that could not be."""

_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)
"""Why one connection is not accepted, where the next one may be."""


def allow_most() -> None:
    """Let this process, and what it starts, have as many open as the system allows at all."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def why_none_opens() -> str:
    """Why this process can open nothing more; empty where it can."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        remedy = f": this process may have {limit}; raise ulimit -Hn" if error.errno == errno.EMFILE else ""
        return f"{error.strerror}{remedy}"
    return ""


def accept(listener: socket.socket) -> socket.socket | None:
    """The next connection; None, after a moment, if the system has not got what another one takes.

    Args:
        listener: where connections come in.

    Raises:
        OSError: it is closed.
    """
    try:
        return listener.accept()[0]
    except OSError as error:
        if error.errno not in _SHORT:
            raise
        time.sleep(_REST)
        return None
