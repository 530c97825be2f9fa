"""Names and addresses of hosts: which of a name's addresses others can reach, and in which order they are tried.

All hosts judge alike: IPv4 comes before IPv6 wherever a name has both, so that all servers of a run use the same one.
"""

import array
import errno
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

FoundAddress = tuple[int, int, int, str, tuple[Any, ...]]
"""One of the answers of ``getaddrinfo``."""

EVERYWHERE = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
"""Where a socket listens that is told no address."""

ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""An address of no host, for each family: this machine would use its way to most others."""

ANY_PORT = 50_000
"""One of those that the kernel gives to a socket that asks for none, as those of servers do."""

LOOPBACK = "127.0.0.1"
"""This machine's address for itself."""

OWN = ("localhost", "ip6-localhost", "ip6-loopback")
"""Names by which every machine calls itself, and means no other."""

# See man 7 netdevice: the request, and the bytes of each answer, of its name, and before the address.
_IPV4_ADDRESSES, _ANSWER, _NAME, _BEFORE = 0x8912, 40, 16, 20
_MOST = 1024
"""Addresses of IPv4 that are looked at."""
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")


class NamedHost(NamedTuple):
    """What a name or an address stands for.

    Attributes:
        name: as it was given.
        addresses: those that can be used, the one to try first before the others.
        misleads: whether the name is of this machine alone, though it does not look so: as ``127.0.1.1 HOST`` in
            /etc/hosts, Debian's default, has it on HOST. Elsewhere the name stands for another address.
    """

    name: str
    addresses: tuple[str, ...]
    misleads: bool = False


class OwnAddress(NamedTuple):
    """An address of this machine.

    Attributes:
        interface: where it is.
        address: itself.
    """

    interface: str
    address: str


def judge(name: str, found: Iterable[FoundAddress]) -> NamedHost:
    """What a name stands for.

    Args:
        name: or an address.
        found: what ``getaddrinfo`` has answered.
    """
    known = dict.fromkeys(str(place[0]) for family, _, _, _, place in found if family in EVERYWHERE)
    # Sorting keeps the order in which those of a family were answered.
    addresses = sorted((each for each in known if not _is_of_one_link(each)), key=family_of)
    others = [each for each in addresses if not is_loopback(each)]
    return NamedHost(name, tuple(others or addresses), bool(addresses) and not others and not is_own_name(name))


def is_loopback(address: str) -> bool:
    """Whether an address is of the machine alone that uses it."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def family_of(address: str) -> socket.AddressFamily:
    """Of an address, which is no name."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def place(host: str, port: int) -> str:
    """An address with a port, as people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def choose_own(own: Sequence[OwnAddress], preferred: Sequence[str]) -> str | None:
    """At which of its addresses others reach a machine; None where that cannot be told.

    Args:
        own: all of them.
        preferred: those that it uses itself to reach most others, the better one first.
    """
    known = [each.address for each in own if not is_loopback(each.address)]
    for family in EVERYWHERE:
        of_family = [each for each in known if family_of(each) == family]
        chosen = [each for each in preferred if each in of_family]
        if chosen or len(of_family) == 1:
            return (chosen or of_family)[0]
        if of_family:
            return None
    return None


# What asks this machine.


def look_up(name: str) -> NamedHost:
    """What a name or an address stands for, as this machine knows it.

    Raises:
        OSError: it knows none that can be used.
    """
    try:
        host = judge(name, socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except UnicodeError as error:  # a part of it is empty, or longer than 63 characters
        raise OSError(errno.EINVAL, "it is no name of a host") from error
    if not host.addresses:
        raise OSError(errno.EADDRNOTAVAIL, "it has only addresses of one link (fe80::...), which need an interface")
    return host


def own_addresses() -> list[OwnAddress]:
    """Of all interfaces of this machine, without those that mean nothing on another link."""
    found = []
    room = array.array("B", bytes(_MOST * _ANSWER))
    start, length = room.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        filled = struct.unpack("iP", fcntl.ioctl(probe, _IPV4_ADDRESSES, struct.pack("iP", length, start)))[0]
    for at in range(0, filled, _ANSWER):
        answer = room[at : at + _ANSWER].tobytes()
        name = answer[:_NAME].rstrip(b"\0").decode().partition(":")[0]
        found.append(OwnAddress(name, socket.inet_ntoa(answer[_BEFORE : _BEFORE + 4])))
    # Behind those of IPv4.
    with suppress(OSError):  # this machine has no IPv6
        for line in _IPV6_ADDRESSES.read_text().splitlines():
            words = line.split()
            address = OwnAddress(words[5], str(ipaddress.IPv6Address(bytes.fromhex(words[0]))))
            if not _is_of_one_link(address.address):
                found.append(address)
    return found


def source_towards(address: str) -> str:
    """The address of this machine from which it reaches another one.

    Raises:
        OSError: it does not know how.
    """
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as probe:
        # Nothing is sent.
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


def address_for_others() -> str | None:
    """The address of this machine at which others reach it; None where that cannot be told."""
    preferred = []
    for elsewhere in ELSEWHERE.values():
        with suppress(OSError):
            preferred.append(source_towards(elsewhere))
    return choose_own(own_addresses(), preferred)


def listen_at(address: str, port: int, backlog: int = 4096) -> socket.socket:
    """A socket that listens at an address of this machine.

    Raises:
        OSError: it cannot be used.
    """
    return socket.create_server((address, port), family=family_of(address), backlog=backlog)


def listen_by_name(name: str, port: int, backlog: int = 4096) -> socket.socket:
    """A socket that listens where others find this machine by a name.

    Where they may know another address by it than this machine does, it listens at all that this machine has.

    Raises:
        OSError: it cannot be used.
    """
    host = look_up(name)
    if len(host.addresses) == 1 and not host.misleads:
        return listen_at(host.addresses[0], port, backlog)
    if socket.has_dualstack_ipv6():
        everywhere = EVERYWHERE[socket.AF_INET6], port
        return socket.create_server(everywhere, family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    return listen_at(EVERYWHERE[socket.AF_INET], port, backlog)


def reach(name: str, port: int, patience: float) -> str:
    """The address at which a host that is known by a name answers.

    Args:
        name: or an address.
        port: where it listens.
        patience: seconds to wait for an answer, from all of its addresses together.

    Raises:
        OSError: it does not.
    """
    refusal = OSError(errno.EADDRNOTAVAIL, "it has no address")
    addresses = look_up(name).addresses
    for address in addresses:
        try:
            with closing(socket.create_connection((address, port), patience / len(addresses))):
                return address
        except OSError as error:
            refusal = error
    raise refusal


def answers(address: str, patience: float) -> bool:
    """Whether anything comes back from a host within some seconds, and be it that nobody listens there."""
    try:
        socket.create_connection((address, ANY_PORT), patience).close()
    except OSError as error:
        return error.errno == errno.ECONNREFUSED
    return True


def _is_of_one_link(address: str) -> bool:
    """Whether an address means nothing without the interface that it is at."""
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_link_local and ":" in address
    return False


def is_own_name(name: str) -> bool:
    """Whether a name or an address is of the machine alone that uses it."""
    return is_loopback(name) or name in OWN or name.startswith("localhost.") or name.endswith(".localhost")


def interfaces(own: Iterable[OwnAddress]) -> Iterator[str]:
    """How a user is shown the addresses that others may reach."""
    return (f"{each.address} ({each.interface})" for each in own if not is_loopback(each.address))
