"""Signs of life within a host: workers and agents give them to the one agent that speaks for all.

They go to a door of the host that only processes of its user go through. A host is here what has a network of its own:
a machine, or a container that does not share its machine's.
"""

import os
import select
import selectors
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from recycle.control.membership.doors import BACKLOG, HostDoor, is_own
from recycle.control.membership.errors import ControlError
from recycle.control.membership.messages import MemberName, Number, read_early, seal, unseal
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member
from recycle.record.processes import clock_name

_KEY = "sign"
_LARGEST = 1 << 12

# How many signs of one giver are taken before those of the next.
_AT_ONCE = 16


class Sign(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One sign of life.

    Attributes:
        member: whose.
        agent: the process of its agent.
        role: who gives it.
        count: how many it has given, this one included.
        over: it is the last one, and the next will not be missed.
        rank: of the member's server, that gives it.
    """

    member: MemberName
    agent: Number
    role: Literal["agent", "worker"]
    count: Number
    over: bool = False
    rank: Number = 0

    def __post_init__(self) -> None:
        Member.parse(self.member)


read_early(Sign)


def host_name() -> str:
    """What all processes of this host call it, and those of no other one."""
    return f"{clock_name()}/{Path('/proc/self/ns/net').stat().st_ino}"


def agent_lives(token: str) -> bool:
    """Whether any agent of a run lives on this host.

    Args:
        token: the run's.
    """
    return _door_of(token).is_held()


def _door_of(token: str) -> HostDoor:
    return HostDoor(token, "signs", socket.SOCK_SEQPACKET)


class HostSocket:
    """One process's way to give signs of life within its host, and to take them for all.

    Each giver has a connection of its own: a queue that all share holds ten datagrams on most machines, so that of many
    who give at the same moment the same ones would be lost each time.

    Args:
        token: the run's.
    """

    def __init__(self, token: str) -> None:
        self._token = token
        self._door = _door_of(token)
        self._selector = selectors.EpollSelector()
        self._listener: socket.socket | None = None
        self._connection: socket.socket | None = None

    def fileno(self) -> int:
        """For ``select``: readable when there is something to take."""
        return self._selector.fileno()

    def door_of_agent(self, giver: Participant) -> HostDoor:
        """What an agent holds while it lives; containers of one network see it, and no processes of each other."""
        return HostDoor(self._token, f"agent of {giver}")

    def listen(self) -> bool:
        """Take the signs of all from now on; says whether no other process does."""
        if self._is_taken():
            return False
        listener = None
        # Where no name or no descriptor is left, it is tried at the next beat.
        with suppress(OSError):
            listener = self._door.claim()
        if listener is None:
            return False
        listener.setblocking(False)
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ)
        return True

    def give(self, sign: Sign) -> None:
        """Give a sign to who takes them. Where nobody does, or has room for it, it is lost."""
        sealed = seal(self._token, _KEY, sign)
        # Who took them may be gone, and somebody else in its place.
        for _ in range(2):
            try:
                if self._connection is None:
                    self._connection = self._door.connect()
                    self._connection.setblocking(False)
                self._connection.send(sealed)
                return
            except BlockingIOError:
                return
            except OSError:
                self._leave()

    def take(self) -> Iterator[Sign]:
        """The signs that have come, without what was not made with the run's token."""
        # Whoever is let in may have given something already.
        for _ in range(2):
            for key, _ in self._selector.select(0):
                assert isinstance(key.fileobj, socket.socket), "nothing else is registered"
                if key.fileobj is self._listener:
                    self._let_in(self._listener)
                else:
                    yield from self._take_from(key.fileobj)

    def close(self) -> None:
        """Somebody else may take them."""
        self._leave()
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket), "nothing else is registered"
            key.fileobj.close()
        self._selector.close()

    def _is_taken(self) -> bool:
        """Whether a process that takes them is still connected."""
        if self._connection is None:
            return False
        look = select.poll()
        look.register(self._connection, select.POLLHUP)
        return not look.poll(0)

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _let_in(self, listener: socket.socket) -> None:
        # Where nobody waits any more, or there are too many files, it ends.
        with suppress(OSError):
            # Strangers may come faster than they are turned away.
            for _ in range(BACKLOG):
                connection, _ = listener.accept()
                if not is_own(connection):
                    connection.close()
                    continue
                connection.setblocking(False)
                self._selector.register(connection, selectors.EVENT_READ)

    def _take_from(self, connection: socket.socket) -> Iterator[Sign]:
        with suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                try:
                    sealed = connection.recv(_LARGEST)
                except ConnectionError:
                    sealed = b""
                if not sealed:
                    self._selector.unregister(connection)
                    connection.close()
                    return
                with suppress(ControlError, msgspec.ValidationError):
                    yield unseal(self._token, _KEY, sealed, Sign)


def sign_of_worker(giver: Participant, count: int, *, over: bool = False) -> Sign:
    """A sign of the worker that this process is."""
    return Sign(str(giver.member), os.getppid(), "worker", count, over, giver.rank.number)


def sign_of_agent(giver: Participant, count: int, *, over: bool = False) -> Sign:
    """A sign of the agent that this process is."""
    return Sign(str(giver.member), os.getpid(), "agent", count, over, giver.rank.number)
