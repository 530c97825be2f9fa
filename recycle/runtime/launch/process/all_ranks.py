"""All ranks of one server, in processes that are forked from one."""

import os
import signal
from collections.abc import Callable
from functools import partial

from recycle.control.host.children import fork_below
from recycle.control.membership.view import ServerRank
from recycle.errors import EndedBySignal
from recycle.runtime.launch.process.signals import EndSignals, tell_to_leave

Began = Callable[[int], None]
"""Called with the process of a worker."""


def serve_all_ranks(count: int, serve: Callable[[ServerRank, Began], int]) -> int:
    """Serve in a process for each rank of a server; this one serves as the first, and passes signals on.

    The calling process must have no other threads, because it forks.

    Args:
        count: how many ranks the server has.
        serve: serves as one of them, says which process its worker is, and gives an exit status.

    Returns:
        The exit status of the first.

    Raises:
        EndedBySignal: this process was told to end, and the server has left the run.
    """
    below: list[int] = []
    with EndSignals(lambda: [tell_to_leave(each) for each in below] != []) as signals:
        status = _serve_all(count, serve, below)
    if signals.number and status:
        raise EndedBySignal(f"{signals.name}: the server has left the run", signals.number)
    return status


def _serve_all(count: int, serve: Callable[[ServerRank, Began], int], below: list[int]) -> int:
    def serve_other(number: int) -> int:
        # A terminal's Ctrl-C reaches all processes, and the first one passes it on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        below.clear()
        return serve(ServerRank(number, count), below.append)

    others: list[int] = []
    for number in range(1, count):
        pid = fork_below(partial(serve_other, number))
        others.append(pid)
        below.append(pid)
    status = serve(ServerRank(0, count), below.append)
    for pid in others:
        os.waitpid(pid, 0)
    return status
