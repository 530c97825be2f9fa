"""What the processes of a run tell the launcher: messages over a connection each, let in by the run's token.

It is apart from the store, so that a lost store keeps nobody from seeing how the run goes on.
"""

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import NamedTuple

from recycle.control.host.channel import SealedChannel
from recycle.control.membership.addresses import listen_at, place
from recycle.control.membership.doors import Address, Door, Guest, HostDoor, knock
from recycle.control.membership.errors import ChannelLost, ControlError
from recycle.control.membership.vanished import VANISHED
from recycle.record.processes import clock_name
from recycle.runtime.launch.process.messages import HelloMessage, Message, WelcomeMessage
from recycle.threads import NoneLeft, start_thread

PURPOSE = "launcher"

LOOK = 1.0
"""Seconds between two looks at whether strangers have had their time."""


ANSWER = 10.0
"""Seconds that the launcher may take to let a process in."""


STOPPED = 60.0
"""Seconds that the launcher may be stopped when somebody comes."""


MICROSECONDS = 1e6

ROOM = 1 << 22
"""Bytes that may wait for a launcher of this machine that is stopped, if the system allows so many."""

LAST = 2.0
"""Seconds that the last messages of a run may take to be read. They wait to be, where the launcher was stopped."""


class Received(NamedTuple):
    """One message, and whose it is.

    Attributes:
        sender: who it is from.
        message: the message; the first one of each sender is the sender itself.
    """

    sender: HelloMessage
    message: Message


def launcher_at(host: str, port: int, token: str) -> Address:
    """Where a run's launcher listens.

    Args:
        host: its address.
        port: at which it does; 0 if all of the run is on this machine, and no other one reaches it.
        token: the run's.
    """
    return (host, port) if port else HostDoor(token, PURPOSE)


class ReportInbox:
    """Takes the messages of all processes.

    Args:
        host: the address to bind to; None if all processes are on this machine.
        token: the run's.

    Attributes:
        address: where processes reach it.
        port: of that address; see ``launcher_at``.

    Raises:
        ControlError: the address cannot be used, or another process listens for this run.
    """

    def __init__(self, host: str | None, token: str) -> None:
        try:
            self._socket = HostDoor(token, PURPOSE).hold() if host is None else listen_at(host, 0)
        except OSError as error:
            if host is None:
                raise ControlError(f"the launcher cannot listen on this machine: {error.strerror}") from error
            raise ControlError(
                f"address {host} cannot be used: {error.strerror}; give an address of this machine"
            ) from error
        self.port: int = 0 if host is None else self._socket.getsockname()[1]
        self.address = launcher_at(host or "", self.port, token)
        self._token = token
        self._is_closed = False
        self._received: queue.SimpleQueue[Received] = queue.SimpleQueue()
        self._readers: list[threading.Thread] = []

    def fileno(self) -> int:
        """Of what listens, which only the launcher needs."""
        return self._socket.fileno()

    def open(self) -> None:
        """Start to listen. It is apart from the constructor because threads do not survive a fork."""
        door = Door([self._socket], self._token, PURPOSE)
        start_thread(partial(self._admit, door), "admits reporters")

    def take(self, timeout: float) -> Received | None:
        """The next message, or None when so many seconds have passed without one."""
        try:
            return self._received.get(timeout=timeout)
        except queue.Empty:
            return None

    def take_all(self, timeout: float) -> Iterator[Received]:
        """All messages that are there together with the first one, for which it waits so many seconds.

        Those that come while these are dealt with are left for the next call. Otherwise there might be no end.
        """
        received = self.take(timeout)
        left = self._received.qsize()
        while received is not None:
            yield received
            received = self.take(0) if left else None
            left -= 1

    def take_rest(self, timeout: float = LAST) -> Iterator[Received]:
        """All messages of processes that have ended; those that other processes send are waited for so many seconds."""
        deadline = time.monotonic() + timeout
        for each in self._readers:
            each.join(max(0.0, deadline - time.monotonic()))
        yield from self.take_all(0)

    def close(self) -> None:
        """Stop listening."""
        self._is_closed = True
        with suppress(OSError):  # it may not be listening
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _admit(self, door: Door) -> None:
        with closing(door):
            while not self._is_closed:
                for guest in door.admit(LOOK):
                    try:
                        reader = start_thread(partial(self._read, guest), "hears a reporter")
                    except NoneLeft:
                        guest.connection.close()
                        continue
                    self._readers = [*(each for each in self._readers if each.is_alive()), reader]

    def _read(self, guest: Guest) -> None:
        with closing(SealedChannel(guest, self._token, "launcher", "member")) as channel, suppress(ChannelLost):
            sender = channel.receive(HelloMessage)
            channel.send(WelcomeMessage(clock_name(), time.monotonic()))
            self._received.put(Received(sender, sender))
            while True:
                message: Message = channel.receive(Message)  # type: ignore[arg-type]
                self._received.put(Received(sender, message))


class LauncherConnection:
    """Sends messages to the launcher, and does nothing once the launcher is gone.

    Args:
        address: where it listens.
        token: the run's.
        name: of the member that speaks.
        pid: of this process.
        lost: called once, when the launcher is gone.
        required: whether it must be there now; a run goes on without it.

    Attributes:
        ahead: by how many microseconds this machine's clock is ahead of the launcher's; 0 where that is the same one,
            or is not known.
        clock: the name of the launcher's clock; where that is not known, of this machine's.

    Raises:
        ControlError: it cannot be reached, or the token is of another run.
    """

    def __init__(
        self,
        address: Address,
        token: str,
        name: str,
        pid: int,
        lost: Callable[[], None] = lambda: None,
        *,
        required: bool = True,
    ) -> None:
        self.ahead, self.clock = 0.0, clock_name()
        self._lost = lost
        self._lock = threading.Lock()
        self._channel: SealedChannel | None = None
        try:
            guest = knock(address, token, PURPOSE, ANSWER, STOPPED)
            if not isinstance(address, HostDoor):
                # A host that has vanished takes nothing and says nothing; training must not wait for it.
                guest.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(VANISHED * 1000))
            self._channel = SealedChannel(guest, token, "member", "launcher")
            self.ahead, self.clock = _introduce(self._channel, HelloMessage(name, pid))
            if isinstance(address, HostDoor):
                # Nor must it wait for a launcher that is stopped.
                guest.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
                self._channel.be_patient(VANISHED)
        except (OSError, ChannelLost) as error:
            if not required:
                self._leave()
                return
            where = "a socket of this machine" if isinstance(address, HostDoor) else place(*address)
            raise ControlError(
                f"the launcher at {where} does not let this process in ({error}); take the address "
                "and the token from the folder of a run that is going on"
            ) from error

    def __call__(self, message: Message) -> None:
        """Send a message."""
        with self._lock:
            if self._channel is None:
                return  # training does not depend on being watched
            try:
                self._channel.send(message)
                return
            except ChannelLost:
                self._leave()

    def _leave(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._lost()


def _introduce(channel: SealedChannel, hello: HelloMessage) -> tuple[float, str]:
    """Say what speaks; gives by how many microseconds this machine's clock is ahead of which one."""
    begin = time.monotonic()
    channel.send(hello)
    channel.be_patient(STOPPED)
    welcome, end = channel.receive(WelcomeMessage), time.monotonic()
    channel.be_patient(None)
    between = 0.0 if welcome.clock == clock_name() else ((begin + end) / 2 - welcome.time) * MICROSECONDS
    return between, welcome.clock
