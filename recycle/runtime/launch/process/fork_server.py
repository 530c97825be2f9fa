"""The fork server: a process without threads, from which all other processes of a run are forked.

Forks are quick where torch is imported already, and safe only where no other thread can hold a lock; so the launcher,
which has threads, asks the fork server for new processes, also while the run goes on.
"""

import gc
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Literal

import msgspec

from recycle.control.host.children import fork_below, ignore_signals
from recycle.control.membership.doors import HostDoor
from recycle.control.store.local_store import serve_store
from recycle.control.store.tcp_store import listen, serve
from recycle.errors import RunFailed, UserError
from recycle.runtime.launch.process.detached import fork_keeper
from recycle.runtime.launch.process.title import set_title
from recycle.state import keeper


class ForkRequest(msgspec.Struct, frozen=True):
    """What the launcher asks for: a store on a port, an agent and its worker, or a keeper.

    Attributes:
        kind: which of them.
        name: what the process is called in events.
        port: of the store; 0 if it has none.
        token: the run's, for a keeper.
        limit: the most bytes that a keeper may hold.
        within: the folder in which it may write.
    """

    kind: Literal["store", "server", "keeper"]
    name: str
    port: int = 0
    token: str = ""
    limit: int = 0
    within: str | None = None


class ForkEvent(msgspec.Struct, frozen=True):
    """What the fork server answers: a process was started, one has ended, or the system has refused one.

    Attributes:
        kind: what happened; of a keeper it is not told that it has ended, for another one is started then.
        name: ``store``, ``keeper``, or a member.
        pid: of the process; 0 for a keeper.
        port: where the store listens; 0 if that is a socket of this host.
        status: of a process that has ended, as ``waitstatus_to_exitcode`` gives it.
        reason: why one could not be started.
    """

    kind: Literal["started", "ended", "refused"]
    name: str
    pid: int = 0
    port: int = 0
    status: int = 0
    reason: str = ""


class ForkServer:
    """The launcher's side of it.

    Args:
        place: the address that the store binds to, or its door on this host.
        start: what an agent's process does with a member's name and the store's port; gives its exit status.
        door: where other hosts reach this host's keeper, if they do.
        own: the descriptors at which this process listens, and nothing that is forked from here.
    """

    def __init__(
        self,
        place: str | HostDoor,
        start: Callable[[str, int], int],
        door: socket.socket | None = None,
        own: Sequence[int] = (),
    ) -> None:
        ours, theirs = multiprocessing.Pipe()

        def serve_forks() -> None:
            # The garbage of the parent stays: what of it has had threads would wait for them, which are not here.
            gc.freeze()
            ours.close()
            for each in own:
                os.close(each)
            ignore_signals()
            set_title("fork server")
            _Host(place, start, theirs, door).run()

        self._channel = ours
        self.pid = fork_below(serve_forks)
        theirs.close()

    def serve_store(self, port: int = 0) -> None:
        """Ask for a store's process; the event of its start says where it listens."""
        self._ask(ForkRequest("store", "store", port))

    def start_keeper(self, token: str, limit: int, within: Path | None) -> None:
        """Ask for a keeper's process, which trainers can reach once it has started.

        Args:
            token: the run's.
            limit: the most bytes that it may hold.
            within: the folder in which it may write versions to disk; None where nobody asks for it.
        """
        folder = None if within is None else str(within)
        self._ask(ForkRequest("keeper", "keeper", token=token, limit=limit, within=folder))

    def start_server(self, name: str, port: int) -> None:
        """Ask for an agent and its worker."""
        self._ask(ForkRequest("server", name, port))

    def next_event(self, timeout: float) -> ForkEvent | None:
        """What happened next, or None when nothing has happened for so many seconds.

        Raises:
            RunFailed: the fork server has ended.
        """
        with _in_run():
            if not self._channel.poll(timeout):
                return None
            return msgspec.json.decode(self._channel.recv_bytes(), type=ForkEvent)

    def end(self) -> None:
        """End all its processes but a keeper, and itself."""
        self._channel.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _ask(self, request: ForkRequest) -> None:
        with _in_run():
            self._channel.send_bytes(msgspec.json.encode(request))


@contextmanager
def _in_run() -> Iterator[None]:
    """Without the fork server there is no run: all that it has forked die with it."""
    try:
        yield
    except (EOFError, OSError) as error:
        raise RunFailed(
            "the fork server has ended, and all servers of this machine with it; go on with --resume, and give the "
            "run more memory, descriptors or processes if the system has refused them"
        ) from error


def serve_until_killed(listener: socket.socket) -> int:
    """Be the process of a store.

    Args:
        listener: where it is reached.
    """
    ignore_signals()
    set_title("store")
    if listener.family == socket.AF_UNIX:
        serve_store(listener)
    served = serve(listener)
    signal.pause()
    del served
    return 1


class _Host:
    """The fork server's own side."""

    def __init__(
        self, place: str | HostDoor, start: Callable[[str, int], int], channel: Connection, door: socket.socket | None
    ) -> None:
        self._place = place
        self._start = start
        self._door = door
        self._channel = channel
        self._children: dict[int, tuple[str, int]] = {}

    def run(self) -> None:
        while True:
            channel = self._channel.fileno()
            for handle in wait([channel, *self._children]):
                assert isinstance(handle, int)
                if handle != channel:
                    self._bury(handle)
                    continue
                try:
                    request = msgspec.json.decode(self._channel.recv_bytes(), type=ForkRequest)
                except EOFError:
                    return  # children die with their parent
                try:
                    self._fulfil(request)
                except (OSError, UserError) as error:
                    # What is missing is the launcher's to deal with; all that runs goes on.
                    self._tell(ForkEvent("refused", request.name, status=1, reason=str(error)))

    def _fulfil(self, request: ForkRequest) -> None:
        if request.kind == "keeper":
            doors = [keeper.listen(request.token), *([] if self._door is None else [self._door])]
            fork_keeper(doors, request.token, request.limit, None if request.within is None else Path(request.within))
            self._tell(ForkEvent("started", request.name))
            return
        listener, port = self._listen(request.port) if request.kind == "store" else (None, request.port)

        def work() -> int:
            self._channel.close()
            for handle in self._children:
                os.close(handle)
            if self._door is not None:
                self._door.close()
            return self._start(request.name, request.port) if listener is None else serve_until_killed(listener)

        try:
            pid = fork_below(work)
        finally:
            if listener is not None:
                listener.close()
        try:
            self._children[os.pidfd_open(pid)] = (request.name, pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._tell(ForkEvent("started", request.name, pid, port))

    def _listen(self, port: int) -> tuple[socket.socket, int]:
        """Where the store is reached."""
        if isinstance(self._place, HostDoor):
            return self._place.hold(), 0
        listener = listen(self._place, port)
        return listener, listener.getsockname()[1]

    def _bury(self, handle: int) -> None:
        name, pid = self._children.pop(handle)
        os.close(handle)
        _, status = os.waitpid(pid, 0)
        self._tell(ForkEvent("ended", name, pid, status=os.waitstatus_to_exitcode(status)))

    def _tell(self, event: ForkEvent) -> None:
        self._channel.send_bytes(msgspec.json.encode(event))
