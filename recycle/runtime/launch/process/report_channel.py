"""What the processes of a run tell the launcher: messages over a connection each, let in by the run's token.

It is apart from the store, so that a lost store keeps nobody from seeing how the run goes on.
"""

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import NamedTuple

import msgspec

from recycle.control.membership.addresses import listen_at, place
from recycle.control.membership.clock import clock_name
from recycle.control.membership.errors import ControlError
from recycle.control.membership.open_files import accept
from recycle.runtime.launch.process.messages import HelloMessage, Message, WelcomeMessage, decode, encode

LONGEST_HELLO = 200
"""Bytes of the first message; nobody's name is longer."""


LONGEST_SILENCE = 10_000
"""Milliseconds for which the launcher may not acknowledge what was sent."""


MICROSECONDS = 1e6

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


class ReportInbox:
    """Takes the messages of all processes.

    Args:
        host: the address to bind to.
        token: the run's.

    Attributes:
        address: where processes reach it.

    Raises:
        ControlError: the address cannot be used.
    """

    def __init__(self, host: str, token: str) -> None:
        try:
            self._socket = listen_at(host, 0)
        except OSError as error:
            raise ControlError(
                f"address {host} cannot be used: {error.strerror}; give an address of this machine"
            ) from error
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._key = token.encode()
        self._received: queue.SimpleQueue[Received] = queue.SimpleQueue()
        self._readers: list[threading.Thread] = []

    def open(self) -> None:
        """Start to listen. It is apart from the constructor because threads do not survive a fork."""
        threading.Thread(target=self._accept, daemon=True).start()

    def take(self, timeout: float) -> Received | None:
        """The next message, or None when so many seconds have passed without one."""
        try:
            return self._received.get(timeout=timeout)
        except queue.Empty:
            return None

    def take_all(self, timeout: float) -> Iterator[Received]:
        """All messages that are there, or come while those are dealt with; waits so many seconds for a first one."""
        received = self.take(timeout)
        while received is not None:
            yield received
            received = self.take(0)

    def take_rest(self, timeout: float = LAST) -> Iterator[Received]:
        """All messages of processes that have ended; those that other processes send are waited for so many seconds."""
        deadline = time.monotonic() + timeout
        for each in self._readers:
            each.join(max(0.0, deadline - time.monotonic()))
        yield from self.take_all(0)

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):  # it may not be listening
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted = accept(self._socket)
            except OSError:
                return
            if accepted is None:
                continue
            # Who is slow to prove that it has the token, or never does, keeps nobody else waiting.
            reader = threading.Thread(target=self._read, args=(Connection(accepted.detach()),), daemon=True)
            reader.start()
            self._readers = [*(each for each in self._readers if each.is_alive()), reader]

    def _read(self, connection: Connection) -> None:
        with connection, suppress(AuthenticationError, EOFError, OSError, msgspec.DecodeError):
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            sender = message = decode(connection.recv_bytes(LONGEST_HELLO))
            connection.send_bytes(encode(WelcomeMessage(clock_name(), time.monotonic())))
            while isinstance(sender, HelloMessage):
                self._received.put(Received(sender, message))
                message = decode(connection.recv_bytes())


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

    Raises:
        ControlError: it cannot be reached, or the token is of another run.
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        name: str,
        pid: int,
        lost: Callable[[], None] = lambda: None,
        *,
        required: bool = True,
    ) -> None:
        self.ahead = 0.0
        self._lost = lost
        self._connection: Connection | None = None
        try:
            self._connection = _reach(address, token.encode())
            self.ahead = _introduce(self._connection, HelloMessage(name, pid))
        except (OSError, EOFError, AuthenticationError) as error:
            if isinstance(error, OSError) and not required:
                self._leave()
                return
            raise ControlError(
                f"the launcher at {place(*address)} does not let this process in ({error}); take the address "
                "and the token from the folder of a run that is going on"
            ) from error

    def __call__(self, message: Message) -> None:
        """Send a message."""
        if self._connection is None:
            return  # training does not depend on being watched
        try:
            self._connection.send_bytes(encode(message))
        except OSError:
            self._leave()

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._lost()


def _reach(address: tuple[str, int], key: bytes) -> Connection:
    with socket.create_connection(address, LONGEST_SILENCE / 1000) as reached:
        # A host that has lost the network takes nothing and says nothing; training must not wait for it.
        reached.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LONGEST_SILENCE)
        reached.settimeout(None)
        connection = Connection(reached.detach())
    answer_challenge(connection, key)
    deliver_challenge(connection, key)
    return connection


def _introduce(connection: Connection, hello: HelloMessage) -> float:
    """Say who speaks; gives by how many microseconds this machine's clock is ahead."""
    begin = time.monotonic()
    connection.send_bytes(encode(hello))
    if not connection.poll(LONGEST_SILENCE / 1000):
        return 0.0
    welcome, end = decode(connection.recv_bytes()), time.monotonic()
    if not isinstance(welcome, WelcomeMessage) or welcome.clock == clock_name():
        return 0.0
    return ((begin + end) / 2 - welcome.time) * MICROSECONDS
