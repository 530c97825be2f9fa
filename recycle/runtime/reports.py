"""What the processes of a run tell the launcher: bytes over a connection of their own, let in by the run's token.

It is apart from the store, so that a lost store keeps nobody from seeing how the run goes on.
"""

import queue
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import NamedTuple

from recycle.control.errors import ControlError


class Said(NamedTuple):
    """One message.

    Attributes:
        sender: who said it: a member's name.
        pid: of the process.
        content: what was said.
    """

    sender: str
    pid: int
    content: bytes


class Hub:
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
            self._listener = Listener((host, 0), backlog=4096, authkey=token.encode())
        except OSError as error:
            raise ControlError(
                f"address {host} cannot be used: {error.strerror}; give an address of this machine"
            ) from error
        address = self._listener.address
        assert isinstance(address, tuple)
        self.address: tuple[str, int] = address
        self._said: queue.SimpleQueue[Said] = queue.SimpleQueue()

    def open(self) -> None:
        """Start to listen. It is apart from the constructor because threads do not survive a fork."""
        threading.Thread(target=self._accept, daemon=True).start()

    def take(self, timeout: float) -> Said | None:
        """The next message, or None when so many seconds have passed without one."""
        try:
            return self._said.get(timeout=timeout)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except (AuthenticationError, EOFError, ConnectionError):
                continue  # somebody without the token, or who died at the door
            except OSError:
                return
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: Connection) -> None:
        try:
            sender, _, pid = connection.recv_bytes(200).decode().partition(" ")
            while True:
                self._said.put(Said(sender, int(pid), connection.recv_bytes()))
        except (EOFError, OSError, ValueError):
            connection.close()


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
