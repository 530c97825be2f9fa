"""A store for processes that were started apart without torchrun; as with torchrun, it is in no rank's process."""

import os
import signal
import time
from collections.abc import Callable

from recycle.control.agent import die_with_parent
from recycle.control.errors import ControlError, StoreLost
from recycle.control.tcp_store import TorchStore, serve
from recycle.runtime.launch.signals import ignore_signals
from recycle.runtime.launch.start import Start
from recycle.runtime.launch.title import set_title

PATIENCE = 600.0
"""Seconds that processes wait for the store."""

LOOK = 0.1
"""Seconds between two looks."""


class HostedStore:
    """It is served from a process below the first of them, for as long as that one lives.

    The calling process must have no other threads, because it forks.

    Args:
        start: how this process was started.

    Raises:
        ControlError: the address cannot be used, or there is no store there.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        if start.rank == 0:
            listener = start.listen()
            if os.fork() == 0:
                die_with_parent()
                ignore_signals()
                set_title("store")
                served = serve(listener)
                while served is not None:
                    signal.pause()
            listener.close()
        await_store(lambda: TorchStore(start.host, start.port), start, PATIENCE)

    def variables(self) -> dict[str, str]:
        """What torch has to be told so that it takes this store for torchrun's."""
        return self._start.variables() | {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}


def await_store(connect: Callable[[], TorchStore], start: Start, patience: float) -> TorchStore:
    """A connection to a store that may not be there yet.

    Raises:
        ControlError: it is not there after so many seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            return connect()
        except StoreLost as error:
            if time.monotonic() > deadline:
                raise ControlError(
                    f"the store at {start.host}:{start.port} does not answer within {patience:g} s: see whether the "
                    "first process runs, and whether MASTER_ADDR and MASTER_PORT name its host and a free port there"
                ) from error
            time.sleep(LOOK)
