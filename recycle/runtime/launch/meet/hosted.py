"""A store for processes that were started apart without torchrun; as with torchrun, it is in no rank's process."""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from recycle.control.host.children import fork_below
from recycle.control.host.waiting_notice import WaitingNotice
from recycle.control.membership.addresses import look_up, place
from recycle.control.membership.errors import ControlError, StoreLost
from recycle.control.store.tcp_store import TorchStore
from recycle.runtime.launch.meet.start import Start
from recycle.runtime.launch.process.fork_server import serve_until_killed

PATIENCE = 600.0
"""Seconds that processes wait for the store."""

LOOK = 0.1
"""Seconds between two looks."""


class HostedStore:
    """It is served from a process below the first of them, for as long as that one lives.

    The calling process must have no other threads, because it forks.

    Args:
        start: how this process was started.
        say: tells the user for whom this process waits.

    Raises:
        ControlError: the address cannot be used, or there is no store there.
    """

    def __init__(self, start: Start, say: Callable[[str], None]) -> None:
        self._start = start
        if start.rank == 0:
            listener = start.listen()
            fork_below(partial(serve_until_killed, listener))
            listener.close()
        await_store(lambda: TorchStore(start.host, start.port), start, PATIENCE, say)

    def variables(self) -> dict[str, str]:
        """What torch has to be told so that it takes this store for torchrun's."""
        return self._start.variables() | {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}


def await_store(
    connect: Callable[[], TorchStore], start: Start, patience: float, say: Callable[[str], None]
) -> TorchStore:
    """A connection to a store that may not be there yet.

    Args:
        connect: connects to it.
        start: how this process was started.
        patience: how long to wait for it, in seconds.
        say: tells the user for whom this process waits.

    Raises:
        ControlError: it is not there after so many seconds.
    """
    deadline, awaiting = time.monotonic() + patience, WaitingNotice(say)
    while True:
        try:
            return connect()
        except StoreLost as error:
            if time.monotonic() > deadline:
                raise ControlError(
                    f"the store at {place(start.host, start.port)} does not answer within {patience:g} s: see whether "
                    "the first process runs, and whether MASTER_ADDR and MASTER_PORT name its host and a free port "
                    "there"
                ) from error
            awaiting.look(lambda: _store_awaited(start))
            time.sleep(LOOK)


def _store_awaited(start: Start) -> str:
    """What a process says that waits for the store."""
    waits = (
        f"process {start.rank} waits for the store at {place(start.host, start.port)}, which the first process serves"
    )
    with suppress(OSError):
        host = look_up(start.host)
        if host.misleads:
            return (
                f"{waits}; on {socket.gethostname()}, {start.host} is {host.addresses[0]}, itself: where the first "
                "process is on another host, give MASTER_ADDR the address of that one, or mend /etc/hosts"
            )
    return waits
