"""Where ranks listen, and where the ends of connections are."""

import socket
import struct
from typing import Any, NamedTuple

FAMILIES = socket.AF_INET, socket.AF_INET6

_IPV4 = 4
"""Bytes of an address of that family."""

_NAME = struct.Struct("=Q")
_SOCKET = struct.Struct("=HH")
_HOSTS = {socket.AF_INET: slice(4, 8), socket.AF_INET6: slice(8, 24)}
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
        place = published[2 * _NAME.size + length :]
        family, port = _SOCKET.unpack_from(place)
        return cls(place[_HOSTS[socket.AddressFamily(family)]], port)

    @classmethod
    def of_end(cls, family: int, name: tuple[Any, ...]) -> "Address":
        """An end of a connection.

        Args:
            family: one of ``FAMILIES``.
            name: as Python gives it: the host, perhaps with the interface that it is at, the port, and more.
        """
        host, port = name[:2]
        return cls(socket.inet_pton(family, host.partition("%")[0]), socket.htons(port))
