"""Hosts that vanish: one that is switched off or cut off closes no connection.

The kernel then waits for an answer to what was sent for a quarter of an hour, and where nothing was sent for ever.
"""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

SOCKETS = "/proc/self/fd"

VANISHED = 30.0
"""Seconds for which a host may answer nothing before its connections are ended. Within them, a machine that was
suspended or a switch that was restarted is mostly back."""

_IDLE, _APART = 10, 5
_PROBES = {
    socket.TCP_KEEPIDLE: _IDLE,
    socket.TCP_KEEPINTVL: _APART,
    socket.TCP_KEEPCNT: (int(VANISHED) - _IDLE) // _APART,
}


def end_idle_with_host(connection: socket.socket) -> None:
    """Have the kernel end a connection over which nothing is sent when the host at its other end has vanished.

    A process there that is stopped or busy ends nothing: its kernel answers.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBES.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def end_all_with_host(address: str, port: int) -> None:
    """Have the kernel end this process's connections to a port when the host there has vanished.

    It must not be one that may take nothing for long: such a connection ends, too.
    """
    for number, _ in own_sockets():
        # An error is one that is closed, or has no other end.
        with suppress(OSError), looked_at(number) as connection:
            if connection.family != socket.AF_UNIX and _end(connection.getpeername()) == (address, port):
                end_idle_with_host(connection)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(VANISHED * 1000))


def _end(name: tuple[Any, ...]) -> tuple[str, int]:
    """The address and port of an end; one of IPv4 may be that of a socket of IPv6."""
    return name[0].removeprefix("::ffff:"), name[1]


def own_sockets() -> Iterator[tuple[int, int]]:
    """Each socket's file descriptor and inode. By the time that it is looked at, it may be closed."""
    for name in os.listdir(SOCKETS):  # noqa: PTH208 - training stands still while this is done
        try:
            status = os.fstat(int(name))
        except OSError:  # the listing's own descriptor, or one that is closed
            continue
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
