"""The sockets of this machine, as the kernel accounts for them."""

import os
import re
import socket
import struct
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from harness.processes import PROCESSES, UNSEEN, open_files

_TCP_LISTENS = "0A"
_ACCEPTS = 1 << 16


class Listening(NamedTuple):
    """A socket that takes connections.

    Attributes:
        family: of its address.
        kind: of socket.
        address: of a socket of the network its address and port, and otherwise its name.
        holders: the processes that have it open.
    """

    family: socket.AddressFamily
    kind: socket.SocketKind
    address: tuple[str, int] | bytes
    holders: frozenset[int]

    def connect(self, patience: float = 60.0) -> socket.socket:
        """A connection to it.

        Raises:
            TimeoutError: it took none for so many seconds.
        """
        connection = socket.socket(self.family, self.kind)
        connection.settimeout(patience)
        try:
            connection.connect(self.address)
        except OSError:
            connection.close()
            raise
        return connection


def listening(processes: Collection[int]) -> list[Listening]:
    """All sockets at which some processes listen."""
    holders: dict[int, set[int]] = defaultdict(set)
    for process in processes:
        for name in open_files(process).values():
            if found := re.fullmatch(r"socket:\[(\d+)\]", name):
                holders[int(found[1])].add(process)
    networks = {name: process for process in processes for name in _network_of(process)}
    everything = {
        inode: each for process in networks.values() for inode, each in _listed(PROCESSES / str(process) / "net")
    }
    return [each._replace(holders=frozenset(holders[inode])) for inode, each in everything.items() if inode in holders]


def _network_of(process: int) -> list[str]:
    """The network that a process has, if it is still there."""
    with suppress(*UNSEEN):
        return [str((PROCESSES / str(process) / "ns" / "net").readlink())]
    return []


def _listed(net: Path) -> Iterator[tuple[int, Listening]]:
    with suppress(*UNSEEN):
        yield from _of_unix(net)
        yield from _of_network(net / "tcp", socket.AF_INET)
        yield from _of_network(net / "tcp6", socket.AF_INET6)


def _of_unix(net: Path) -> Iterator[tuple[int, Listening]]:
    for line in (net / "unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & _ACCEPTS and len(fields) > 7:
            name = fields[7].replace("@", "\0", 1).encode()
            yield int(fields[6]), Listening(socket.AF_UNIX, socket.SocketKind(int(fields[4], 16)), name, frozenset())


def _of_network(table: Path, family: socket.AddressFamily) -> Iterator[tuple[int, Listening]]:
    for line in table.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == _TCP_LISTENS:
            packed, _, port = fields[1].partition(":")
            words = [bytes.fromhex(packed[at : at + 8])[::-1] for at in range(0, len(packed), 8)]
            address = socket.inet_ntop(family, b"".join(words)), int(port, 16)
            yield int(fields[9]), Listening(family, socket.SOCK_STREAM, address, frozenset())


_SENT = 200
"""Where the kernel's account of a TCP connection has how many bytes were sent; how many of them again is behind it."""


def bytes_sent() -> int:
    """By all TCP connections that this process has open."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError), socket.socket(fileno=os.dup(int(each.name))) as copy:
            account = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            sent, again = struct.unpack_from("QQ", account, _SENT)
            found += sent - again
    return found
