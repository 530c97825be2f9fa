"""Where gloo listens. The kernel lets nobody in while no rank is to come.

Gloo listens as long as a group is there. It takes whatever connects, and lets go of nothing: the connections of
strangers would take descriptors until the process has none left, and each recovery would look through all of them. So
a listening socket gets a filter that drops what arrives there. What was accepted before goes on.
"""

import ctypes
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

from recycle.control.membership.vanished import looked_at
from recycle.runtime.net.gloo.sockets import Sockets, inode_of

_ATTACH_FILTER, _DETACH_FILTER = 26, 27
"""Options of a socket that Python does not name. A filter is a small program, and takes no privilege."""

_DROP = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0), 8)
"""The program ``return 0``, which keeps nothing of a packet."""

_FILTER = struct.pack("@HP", 1, ctypes.addressof(_DROP))


class Listener:
    """A socket at which gloo listens. It is open at first, and stays so until it is found."""

    def __init__(self) -> None:
        self._socket: tuple[int, int] | None = None
        self._users = 0
        self._lock = Lock()

    def is_at(self, number: int, inode: int) -> None:
        """It is found.

        Args:
            number: its file descriptor.
            inode: of the socket. It tells whether the number is another socket's by now.
        """
        self._socket = number, inode

    @contextmanager
    def open(self) -> Iterator[None]:
        """Within the block, ranks can connect. After the last such block, nobody can.

        If the block raises, it stays open: partners that connect now learn at once that it was in vain.
        """
        with self._lock:
            self._users += 1
            self._set(_DETACH_FILTER)
        came = False
        try:
            yield
            came = True
        finally:
            with self._lock:
                self._users -= 1
                if came and not self._users:
                    self._set(_ATTACH_FILTER)

    def _set(self, option: int) -> None:
        # A socket without a filter has none to take away, and some sandboxes have no filters: then it stays open.
        with suppress(OSError):
            if self._socket is not None and inode_of(self._socket[0]) == self._socket[1]:
                with looked_at(self._socket[0]) as found:
                    found.setsockopt(socket.SOL_SOCKET, option, _FILTER)


def make_device(make: Callable[..., Any], **where: Any) -> tuple[Any, Listener]:
    """Make a device of gloo's, and see where it listens.

    If another thread has begun to listen meanwhile, nothing tells which socket is whose, and it is never closed.

    Args:
        make: of gloo's.
        where: its arguments.
    """
    before = {*Sockets.look().listening.values()}
    device, listener = make(**where), Listener()
    found = {*Sockets.look().listening.values()} - before
    if len(found) == 1:
        listener.is_at(*found.pop())
    return device, listener
