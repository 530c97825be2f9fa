"""Signs of life within a host: workers and agents give them to the one agent that speaks for all.

They are datagrams to a name that only who has the run's token can tell, in the host's own kernel. A host is here what
has a network of its own: a machine, or a container that does not share its machine's.
"""

import errno
import hmac
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from recycle.control.errors import ControlError
from recycle.control.messages import MemberName, Number, seal, unseal
from recycle.control.view import Member

_KEY = "sign"
_LARGEST = 1 << 12


class Sign(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One sign of life.

    Attributes:
        member: whose.
        agent: the process of its agent.
        role: who gives it.
        count: how many it has given, this one included.
        over: it is the last one, and the next will not be missed.
    """

    member: MemberName
    agent: Number
    role: Literal["agent", "worker"]
    count: Number
    over: bool = False

    def __post_init__(self) -> None:
        Member.parse(self.member)


def host_name() -> str:
    """What all processes of this host call it, and those of no other one."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"


class HostSocket:
    """One process's way to give signs of life within its host, and to take them for all.

    Args:
        token: the run's.
    """

    def __init__(self, token: str) -> None:
        self._token = token
        # Not a file: it is gone with the process that has it.
        self._name = b"\0recycle/" + hmac.digest(token.encode(), b"host", "sha256").hex().encode()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """For ``select``: readable when there is something to take."""
        return self._socket.fileno()

    def listen(self) -> bool:
        """Take the signs of all from now on; says whether nobody else does."""
        try:
            self._socket.bind(self._name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        return True

    def give(self, sign: Sign) -> None:
        """Give a sign to who takes them. Where nobody does, or has no room for it, it is lost."""
        with suppress(OSError):
            self._socket.sendto(seal(self._token, _KEY, sign), self._name)

    def take(self) -> Iterator[Sign]:
        """The signs that have come, without what was not made with the run's token."""
        with suppress(BlockingIOError):
            while True:
                sealed = self._socket.recv(_LARGEST)
                with suppress(ControlError, msgspec.ValidationError):
                    yield unseal(self._token, _KEY, sealed, Sign)

    def close(self) -> None:
        """Somebody else may take them."""
        self._socket.close()


def sign_of_worker(member: Member, count: int, *, over: bool = False) -> Sign:
    """A sign of the worker that this process is."""
    return Sign(str(member), os.getppid(), "worker", count, over)


def sign_of_agent(member: Member, count: int, *, over: bool = False) -> Sign:
    """A sign of the agent that this process is."""
    return Sign(str(member), os.getpid(), "agent", count, over)
