"""How a thread that waits in a process group is set free by another one.

A reduction in which somebody is gone may hang until its time-out, and so may a receive from a live server that is
itself stuck. Neither ``abort`` nor ``shutdown`` of a gloo group wakes who waits in it. The expiry of a wait does, as a
side effect, but takes up to ten milliseconds for every connection of the group. So the group's connections are shut
down below it: gloo finds them closed, as if its partners had died, and so do the partners.
"""

import os
import socket
import stat
from collections.abc import Mapping

SOCKETS = "/proc/self/fd"


class Connections:
    """The connections that a gloo group opened.

    Args:
        before: ``open_sockets`` from right before the group was made.
        after: the same from right after it.
        keep: connections to or from these ports are not the group's, though they were opened meanwhile.
    """

    def __init__(self, before: Mapping[int, int], after: Mapping[int, int], keep: frozenset[int]) -> None:
        self._opened = {number: inode for number, inode in after.items() if before.get(number) != inode}
        self._keep = keep

    def cut(self) -> None:
        """Shut them down. What waits for one of them, on either side, raises at once."""
        for number, inode in self._opened.items():
            try:
                # The number may be another connection's by now.
                if os.fstat(number).st_ino == inode:
                    self._shut_down(number)
            except OSError:
                continue  # it is closed, or never was connected

    def _shut_down(self, number: int) -> None:
        with socket.socket(fileno=os.dup(number)) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
                return
            # What listens has no peer, and raises here: the device of gloo must be left as it is.
            ports = {connection.getsockname()[1], connection.getpeername()[1]}
            if ports.isdisjoint(self._keep):
                connection.shutdown(socket.SHUT_RDWR)


def open_sockets() -> dict[int, int]:
    """The sockets of this process: their inodes by file descriptor."""
    found = {}
    for name in os.listdir(SOCKETS):  # noqa: PTH208 - training stands still while this is done
        try:
            status = os.fstat(int(name))
        except OSError:
            continue  # it was the listing's own
        if stat.S_ISSOCK(status.st_mode):
            found[int(name)] = status.st_ino
    return found


def cut_connections(keep: frozenset[int]) -> None:
    """Shut down all TCP connections of this process but those from or to some ports; the other ends see it at once."""
    Connections({}, open_sockets(), keep).cut()
