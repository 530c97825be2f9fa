"""How many files and connections a process may have open, and whether that is why something failed."""

import errno
import os
import resource


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
