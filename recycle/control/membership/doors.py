"""The doors of a run: where its processes take connections, and what each side proves before anything is believed.

On a host, the kernel tells either side which user is at the other end. After that, and between hosts, each proves that
it has the run's token. A stranger is given no thread, no memory that it asks for, and no more than a moment.
"""

import errno
import hmac
import os
import re
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from recycle.control.membership.addresses import family_of

NAMES = 64
"""So many names a host's door has. Only who has the token can tell the next one, when a stranger has taken some."""

MOST = 128
"""So many connections may be open at a door that have proved nothing; of more, the oldest is dropped."""

MOMENT = 5.0
"""Seconds that a proof may take in all."""

TRIES = 3
"""So often a proof is begun, since strangers may be so many that who knocks is dropped among them."""

REST = 0.1
"""Seconds until a connection is accepted that could not be."""

CALM = 0.005
"""Seconds for which nobody is let in after another user of the host was turned away: a process that connects again and
again must not take the processor."""

LEAVES = 5.0
"""Seconds in which a process that was killed leaves its door."""

BACKLOG = 1024

_AT_ONCE = 64
_NONCE, _PROOF = 16, 32
_CREDENTIALS = struct.Struct("3i")
_TIME = struct.Struct("2l")
_LISTENS = b"00010000"
"""How the kernel lists a socket at which a process listens."""

_CLOSED = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)


class Guest(NamedTuple):
    """A connection of which both sides have proved that they have the token.

    Attributes:
        connection: itself.
        session: what tells it from all others, which both sides have chosen.
    """

    connection: socket.socket
    session: bytes


class HostDoor(NamedTuple):
    """A door that only processes of one host and one user go through: names of the kernel's, and no files.

    A stranger sees a name that is in use, and may take it when its process has ended. So there are several: who listens
    takes the first one that is free, and who connects takes the first one at which its own user listens.

    Attributes:
        token: the run's.
        purpose: what the door is for.
        kind: of the sockets.
    """

    token: str
    purpose: str
    kind: socket.SocketKind = socket.SOCK_STREAM

    def names(self) -> Iterator[bytes]:
        """The names, one after the other."""
        for number in range(NAMES):
            name = hmac.digest(self.token.encode(), f"{self.purpose}/{number}".encode(), "sha256")
            yield b"\0recycle/" + name.hex().encode()

    def claim(self) -> socket.socket | None:
        """Listen at it; None if another process of this user does.

        Raises:
            OSError: there is no name left, or no descriptor.
        """
        if self.is_held():
            return None
        for name in self.names():
            listener = socket.socket(socket.AF_UNIX, self.kind)
            try:
                listener.bind(name)
                listener.listen(BACKLOG)
            except OSError as error:
                listener.close()
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            # Of two that claim it at once under two names, each listens before it looks, so that one of them gives way.
            if self.is_held(without=name):
                listener.close()
                return None
            return listener
        raise OSError(errno.EADDRINUSE, "strangers hold all its names on this host")

    def hold(self, patience: float = LEAVES) -> socket.socket:
        """Listen at it, within so many seconds: another process of this user may be about to end.

        Raises:
            OSError: another one listens, or there is no name left, or no descriptor.
        """
        deadline = time.monotonic() + patience
        while (listener := self.claim()) is None:
            if time.monotonic() > deadline:
                raise OSError(errno.EADDRINUSE, "another process of this run listens there: end it")
            time.sleep(REST)
        return listener

    def connect(self, patience: float = 0.0, without: bytes = b"") -> socket.socket:
        """A connection to who listens.

        Args:
            patience: seconds to wait where many others want to connect.
            without: a name that is not tried.

        Raises:
            OSError: no process of this user listens, or there is no descriptor.
        """
        deadline = time.monotonic() + patience
        while True:
            busy = []
            for name in self.names():
                try:
                    if name != without and (found := self._try(name, 0.0)) is not None:
                        return found
                except BlockingIOError:
                    busy.append(name)
            if not busy or time.monotonic() >= deadline:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "no process of this user listens")
            # One whose queue is full may be a stranger's, while this user's process comes at another one.
            for name in busy:
                with suppress(BlockingIOError):
                    if (found := self._try(name, min(REST, patience) / len(busy))) is not None:
                        return found

    def _try(self, name: bytes, patience: float) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, self.kind)
        is_found = False
        try:
            connection.setblocking(patience > 0)
            # Python itself does not wait for room in a queue.
            connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(*divmod(int(patience * 1e6), 1_000_000))
            )
            connection.connect(name)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(0, 0))
            connection.setblocking(True)
            is_found = is_own(connection)
        except ConnectionRefusedError:
            pass  # it is free
        finally:
            if not is_found:
                connection.close()
        return connection if is_found else None

    def is_held(self, without: bytes = b"") -> bool:
        """Whether another process of this user listens.

        Args:
            without: a name that is not looked at.
        """
        try:
            self.connect(REST, without).close()
        except ConnectionRefusedError:
            # Strangers may have filled its queue.
            return _listens_here({*self.names()} - {without})
        return True


def _listens_here(names: Collection[bytes]) -> bool:
    """Whether a process of this user has one of some names, whether or not it takes connections now."""
    listed = [each.split() for each in Path("/proc/net/unix").read_bytes().splitlines()[1:]]
    wanted = {each.replace(b"\0", b"@") for each in names}
    links = {f"socket:[{each[6].decode()}]" for each in listed if each[3] == _LISTENS and each[-1] in wanted}
    return bool(links) and any(links & {*_open_files(each)} for each in Path("/proc").glob("[0-9]*"))


def _open_files(process: Path) -> Iterator[str]:
    """What a process of this user has open; nothing of another user's, or of one that has ended."""
    with suppress(OSError):
        found = re.search(r"^Uid:\t\d+\t(\d+)", (process / "status").read_text(), re.MULTILINE)
        for file in (process / "fd").iterdir() if found and int(found[1]) == os.geteuid() else ():
            with suppress(OSError):  # it may be closed meanwhile
                yield str(file.readlink())


Address = HostDoor | tuple[str, int]
"""Of a door: on this host, or where other hosts reach it."""


def is_own(connection: socket.socket) -> bool:
    """Whether the process at the other end runs as the same user, or is on another host, where that cannot be told."""
    if connection.family != socket.AF_UNIX:
        return True
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1]) == os.geteuid()


def accept(listener: socket.socket) -> tuple[list[socket.socket], float]:
    """Take the connections that wait, and close unheard those of other users of this host.

    Args:
        listener: where they wait; it does not block.

    Returns:
        Those that are left, and for how many seconds no other should be taken.

    Raises:
        OSError: it listens no more.
    """
    found: list[socket.socket] = []
    rest = 0.0
    for _ in range(_AT_ONCE):
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            break
        except ConnectionAbortedError:
            continue
        except OSError as error:
            if error.errno in _CLOSED:
                raise
            return found, REST
        if is_own(connection):
            found.append(connection)
        else:
            connection.close()
            rest = CALM
    return found, rest


def knock(address: Address, token: str, purpose: str, reach: float, patience: float) -> Guest:
    """Connect to a door, and prove to each other that both have the token.

    Args:
        address: of the door.
        token: the run's.
        purpose: what the door is for.
        reach: seconds after which a host is given up that takes no connection.
        patience: seconds that the other side may take to prove it, which may be stopped for a while.

    Raises:
        OSError: the door cannot be reached, or its process has not got the token, or this one has not.
    """
    refusal: OSError = ConnectionError()
    for _ in range(TRIES):
        connection = _reach(address, reach)
        try:
            return _prove(connection, token, purpose, patience)
        except (ConnectionResetError, BrokenPipeError) as error:
            connection.close()
            refusal = error
        except BaseException:
            connection.close()
            raise
    raise refusal


def _reach(address: Address, patience: float) -> socket.socket:
    if isinstance(address, HostDoor):
        return address.connect(patience)
    connection = socket.socket(family_of(address[0]), socket.SOCK_STREAM)
    try:
        connection.settimeout(patience)
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def _prove(connection: socket.socket, token: str, purpose: str, patience: float) -> Guest:
    deadline = time.monotonic() + patience
    theirs, ours = _receive(connection, _NONCE, deadline), secrets.token_bytes(_NONCE)
    session = theirs + ours
    connection.sendall(ours + _proof(token, purpose, "knocks", session))
    if not hmac.compare_digest(_receive(connection, _PROOF, deadline), _proof(token, purpose, "opens", session)):
        raise ConnectionError("what listens there has not got this run's token")
    connection.settimeout(None)
    return Guest(connection, session)


def _receive(connection: socket.socket, length: int, deadline: float) -> bytes:
    received = b""
    while len(received) < length:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(length - len(received))
        if not part:
            raise ConnectionResetError(errno.ECONNRESET, "it has hung up, as it does without this run's token")
        received += part
    return received


def _proof(token: str, purpose: str, side: str, session: bytes) -> bytes:
    # No message of the store is sealed with such a beginning.
    return hmac.digest(token.encode(), b"\xffdoor/" + f"{purpose}/{side}/".encode() + session, "sha256")


class _Knock:
    """A connection that has proved nothing yet.

    Attributes:
        nonce: that it was given.
        heard: what it has said.
        deadline: until when it may prove something, in seconds.
    """

    def __init__(self) -> None:
        self.nonce = secrets.token_bytes(_NONCE)
        self.heard = bytearray()
        self.deadline = time.monotonic() + MOMENT


class Door:
    """What lets in those who have the run's token, in one thread of its process.

    Args:
        listeners: where they connect. They are the door's from now on, but for closing them.
        token: the run's.
        purpose: what the door is for.
    """

    def __init__(self, listeners: Sequence[socket.socket], token: str, purpose: str) -> None:
        self._token = token
        self._purpose = purpose
        self._selector = selectors.DefaultSelector()
        self._knocks: dict[socket.socket, _Knock] = {}
        for each in listeners:
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ)

    def admit(self, timeout: float) -> Iterator[Guest]:
        """Those who have proved something, after a wait of so many seconds at most for anything to happen."""
        for key, _ in self._selector.select(timeout):
            connection = key.fileobj
            assert isinstance(connection, socket.socket), "nothing else is registered"
            if key.data is None:
                self._let_in(connection)
            elif connection in self._knocks:
                yield from self._hear(connection, key.data)
        now = time.monotonic()
        for connection in [each for each, knock in self._knocks.items() if knock.deadline < now]:
            self._turn_away(connection)

    def close(self) -> None:
        """Turn away all who have proved nothing, and let nobody in."""
        for connection in [*self._knocks]:
            self._turn_away(connection)
        self._selector.close()

    def _let_in(self, listener: socket.socket) -> None:
        try:
            found, rest = accept(listener)
        except OSError:
            self._selector.unregister(listener)
            return
        for each in found:
            self._greet(each)
        if rest == REST:
            # Who has proved nothing must not keep out who can.
            self._drop_oldest()
        if rest:
            time.sleep(rest)

    def _greet(self, connection: socket.socket) -> None:
        knock = _Knock()
        try:
            connection.setblocking(False)
            connection.send(knock.nonce)
        except OSError:
            connection.close()
            return
        if len(self._knocks) >= MOST:
            self._drop_oldest()
        self._knocks[connection] = knock
        self._selector.register(connection, selectors.EVENT_READ, knock)

    def _hear(self, connection: socket.socket, knock: _Knock) -> Iterator[Guest]:
        try:
            part = connection.recv(_NONCE + _PROOF - len(knock.heard))
        except BlockingIOError:
            return
        except OSError:
            part = b""
        knock.heard += part
        if part and len(knock.heard) < _NONCE + _PROOF:
            return
        session = knock.nonce + knock.heard[:_NONCE]
        proof = bytes(knock.heard[_NONCE:])
        if not hmac.compare_digest(proof, _proof(self._token, self._purpose, "knocks", session)):
            self._turn_away(connection)
            return
        del self._knocks[connection]
        self._selector.unregister(connection)
        try:
            connection.send(_proof(self._token, self._purpose, "opens", session))
            connection.setblocking(True)
        except OSError:
            connection.close()
            return
        yield Guest(connection, session)

    def _drop_oldest(self) -> None:
        if self._knocks:
            self._turn_away(next(iter(self._knocks)))

    def _turn_away(self, connection: socket.socket) -> None:
        del self._knocks[connection]
        self._selector.unregister(connection)
        connection.close()
