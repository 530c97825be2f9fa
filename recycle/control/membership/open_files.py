"""How many files and connections a process may have open, and whether that is why something failed."""

import errno
import os
import resource
import socket
from contextlib import suppress
from pathlib import Path


def allow_most() -> None:
    """Let this process, and what it starts, have as many open as the system allows at all."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def why_no_file_opens() -> str:
    """Why this process can open no more files and sockets without a port; empty if it can."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        remedy = f": this process may have {limit}; raise ulimit -Hn" if error.errno == errno.EMFILE else ""
        return f"{error.strerror}{remedy}"
    return ""


def why_none_opens() -> str:
    """Why this process can open nothing more; empty where it can."""
    if refusal := why_no_file_opens():
        return refusal
    try:
        with socket.socket() as tried:
            tried.bind(("", 0))
    except OSError as error:
        return f"no port is free here ({error.strerror}){_ports()}"
    return ""


def not_reached(refusal: str) -> str:
    """What is said of something that is not reached, if this process can open nothing more, or else."""
    return f"cannot be reached: {refusal}" if refusal else "does not answer"


def _ports() -> str:
    """What to do about that, where the system says which ports it gives."""
    with suppress(OSError):
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return f": net.ipv4.ip_local_port_range is {first} to {last}; make it wider, or end what holds its ports"
    return ""
