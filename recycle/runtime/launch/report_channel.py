"""What the processes of a run tell the launcher: bytes over a connection of their own, let in by the run's token.

It is apart from the store, so that a lost store keeps nobody from seeing how the run goes on.
"""

import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import NamedTuple

from recycle.control.errors import ControlError


class ReceivedReport(NamedTuple):
    """One message.

    Attributes:
        sender: who said it: a member's name.
        pid: of the process.
        content: what was said; nothing when it has just been let in.
    """

    sender: str
    pid: int
    content: bytes


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
            self._socket = socket.create_server((host, 0), backlog=4096)
        except OSError as error:
            raise ControlError(
                f"address {host} cannot be used: {error.strerror}; give an address of this machine"
            ) from error
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._key = token.encode()
        self._said: queue.SimpleQueue[ReceivedReport] = queue.SimpleQueue()

    def open(self) -> None:
        """Start to listen. It is apart from the constructor because threads do not survive a fork."""
        threading.Thread(target=self._accept, daemon=True).start()

    def take(self, timeout: float) -> ReceivedReport | None:
        """The next message, or None when so many seconds have passed without one."""
        try:
            return self._said.get(timeout=timeout)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):  # it may not be listening
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                return
            # Who is slow to prove that it has the token, or never does, keeps nobody else waiting.
            threading.Thread(target=self._read, args=(Connection(accepted.detach()),), daemon=True).start()

    def _read(self, connection: Connection) -> None:
        with connection, suppress(AuthenticationError, EOFError, OSError, ValueError):
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            sender, _, pid = connection.recv_bytes(200).decode().partition(" ")
            self._said.put(ReceivedReport(sender, int(pid), b""))
            while True:
                self._said.put(ReceivedReport(sender, int(pid), connection.recv_bytes()))


def connect_reporter(address: tuple[str, int], token: str, sender: str, pid: int) -> Callable[[bytes], None]:
    """A function that sends messages to the launcher, and does nothing once the launcher is gone.

    Args:
        address: where it listens.
        token: the run's.
        sender: who speaks.
        pid: of this process.

    Raises:
        ControlError: it cannot be reached, or the token is of another run.
    """
    try:
        connection = Client(address, authkey=token.encode())
        connection.send_bytes(f"{sender} {pid}".encode())
    except (OSError, EOFError, AuthenticationError) as error:
        raise ControlError(
            f"the launcher at {address[0]}:{address[1]} does not let this process in ({error}); take the address and "
            "the token from the folder of a run that is going on"
        ) from error

    def report(content: bytes) -> None:
        try:
            connection.send_bytes(content)
        except OSError:
            return  # training does not depend on being watched

    return report
