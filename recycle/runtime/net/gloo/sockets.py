"""How a thread that waits in a process group is set free by another one.

A reduction in which somebody is gone may hang until its time-out, and so may a receive from a live server that is
itself stuck. Neither ``abort`` nor ``shutdown`` of a gloo group wakes who waits in it. The expiry of a wait does, as a
side effect, but takes up to ten milliseconds for every connection of the group. So the group's connections are shut
down below it: gloo finds them closed, as if its partners had died, and so do the partners.

Gloo says nowhere which connections are a group's. But each group listens at an address of its own: what it has accepted
ends there, and what it has opened ends where a partner listens. So groups are told apart, whatever other threads
connect meanwhile.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from operator import call
from typing import NamedTuple

from recycle.control.membership.vanished import VANISHED, end_idle_with_host, looked_at, own_sockets

_IPV4 = 4
"""Bytes of an address of that family."""

_NAME = struct.Struct("=Q")
_FAMILY, _PORT = struct.Struct("=H"), struct.Struct("=2xH")
_STREAM, _LISTENS = struct.pack("=i", socket.SOCK_STREAM), struct.pack("=i", 1)
_HOSTS: dict[int, slice] = {socket.AF_INET: slice(4, 8), socket.AF_INET6: slice(8, 24)}
"""Where the host is in a socket address of a family."""


class Address(NamedTuple):
    """Where a rank listens, in the order in which gloo compares.

    Attributes:
        host: in the network's order of bytes.
        port: as gloo compares it, which is not in this machine's order.
    """

    host: bytes
    port: int

    @property
    def name(self) -> str:
        """The host, as people write it."""
        return socket.inet_ntop(socket.AF_INET if len(self.host) == _IPV4 else socket.AF_INET6, self.host)

    @classmethod
    def of(cls, published: bytes) -> "Address":
        """Read what gloo published: a name, a socket address, and more; both begin with their lengths."""
        (length,) = _NAME.unpack_from(published)
        return cls.read(published[2 * _NAME.size + length :])

    @classmethod
    def read(cls, name: bytes) -> "Address":
        """Read a socket address of the internet's, as the kernel writes it."""
        (family,), (port,) = _FAMILY.unpack_from(name), _PORT.unpack_from(name)
        return cls(name[_HOSTS[family]], port)


# Unlike Python's own functions, these let no other thread go on.
_LIBRARY = ctypes.PyDLL(None)
_INFO = struct.Struct("=8B13I")
"""The beginning of ``tcp_info``: the third byte counts how often the same was sent again, the fourth how often the
kernel has asked in vain whether the other end is there, and the last number milliseconds since it acknowledged
something. The kernel asks where nothing is under way: also where a route or a firewall of this machine's own lets
nothing out."""

AGAIN = 3
"""So many times either happens before an end counts as one that does not answer: once may happen on any network."""

_ROOM = 128
"""Bytes of an answer of the kernel's, at most."""


class Connection(NamedTuple):
    """A TCP connection of this process.

    Attributes:
        number: its file descriptor.
        peer: the other end as the kernel writes it.
        inode: of its socket. Both tell whether the number is another one's by now, which may have the same peer.
        here: this end.
        there: the other end.
    """

    number: int
    peer: bytes
    inode: int
    here: Address
    there: Address


class Connections:
    """Some connections of this process.

    Args:
        chosen: which.
    """

    def __init__(self, chosen: Iterable[Connection]) -> None:
        self._chosen = tuple(chosen)

    @property
    def open(self) -> bool:
        """Whether gloo has yet to close one of them."""
        return any(inode_of(each.number) == each.inode for each in self._chosen)

    def cut(self) -> None:
        """Shut them down. What waits for one of them, on either side, raises at once."""
        for number, peer, *_ in (each for each in self._chosen if inode_of(each.number) == each.inode):
            name, length = ctypes.create_string_buffer(_ROOM), ctypes.c_uint32(_ROOM)
            steps = (
                partial(_LIBRARY.getpeername, number, name, ctypes.byref(length)),
                partial(_LIBRARY.memcmp, name, peer, len(peer)),
                partial(_LIBRARY.shutdown, number, socket.SHUT_RDWR),
            )
            # Up to the first that is not 0, and no other thread of Python's between two of them: a number that is
            # closed is soon another socket's, and gloo ends the process if that is one of those where it listens.
            any(map(call, steps))


class Sockets(NamedTuple):
    """The TCP sockets of this process.

    Attributes:
        connections: those that have another end.
        listening: where it listens: the file descriptor and the inode of each, by its address.
    """

    connections: list[Connection]
    listening: dict[Address, tuple[int, int]]

    @classmethod
    def look(cls) -> "Sockets":
        """As they are now."""
        found = cls([], {})
        for number, inode in own_sockets():
            peer, here = _ask(_LIBRARY.getpeername, number), _ask(_LIBRARY.getsockname, number)
            if not here or _FAMILY.unpack_from(here)[0] not in _HOSTS:
                continue
            address = Address.read(here)
            option, expected = (socket.SO_TYPE, _STREAM) if peer else (socket.SO_ACCEPTCONN, _LISTENS)
            # Else it was closed meanwhile, and the number is another one's.
            if _ask(_LIBRARY.getsockopt, number, socket.SOL_SOCKET, option) != expected or inode_of(number) != inode:
                continue
            if peer:
                found.connections.append(Connection(number, peer, inode, address, Address.read(peer)))
            else:
                found.listening[address] = number, inode
        return found


def open_connections() -> list[Connection]:
    """The TCP connections of this process."""
    return Sockets.look().connections


def unanswered() -> set[str]:
    """The addresses that do not answer what this process sends them, or that nothing gets to."""
    return {each.there.name for each in _unanswered(0.0)}


def cut_vanished() -> None:
    """Shut down the connections to hosts that have not answered for too long.

    From the first call on, the kernel ends those over which nothing is sent.
    """
    Connections(_unanswered(VANISHED)).cut()
    for each in open_connections():
        with suppress(OSError), looked_at(each.number) as connection:
            end_idle_with_host(connection)


def _unanswered(seconds: float) -> Iterator[Connection]:
    """Connections whose other ends do not answer, and have not for so long."""
    for connection in open_connections():
        info = _ask(_LIBRARY.getsockopt, connection.number, socket.IPPROTO_TCP, socket.TCP_INFO)
        if len(info) >= _INFO.size:
            found = _INFO.unpack_from(info)
            again, asked, silent = found[2], found[3], found[20] / 1000
            if max(again, asked) >= AGAIN and silent >= seconds:
                yield connection


def cut_connections(keep: Iterable[int]) -> None:
    """Shut down all TCP connections of this process but those from or to some ports; the other ends see it at once."""
    kept = frozenset(map(socket.htons, keep))
    Connections(each for each in open_connections() if kept.isdisjoint((each.here.port, each.there.port))).cut()


def inode_of(number: int) -> int:
    """That of what is at a file descriptor; 0 if nothing is."""
    try:
        return os.fstat(number).st_ino
    except OSError:
        return 0


def _ask(call: Callable[..., int], number: int, *more: int) -> bytes:
    """What the kernel says of what is at a file descriptor, as it writes it; empty where there is no such thing."""
    answer, length = ctypes.create_string_buffer(_ROOM), ctypes.c_uint32(_ROOM)
    failed = call(number, *more, answer, ctypes.byref(length))
    return b"" if failed else answer.raw[: length.value]
