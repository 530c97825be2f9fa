"""All ranks of one server, in processes that are forked from one."""

import os
from collections.abc import Callable

from recycle.control.agent import die_with_parent
from recycle.control.view import ServerRank


def serve_all_ranks(count: int, serve: Callable[[ServerRank], int]) -> int:
    """Serve in a process for each rank of a server; this one serves as the first.

    The calling process must have no other threads, because it forks.

    Args:
        count: how many ranks the server has.
        serve: serves as one of them, and gives an exit status.

    Returns:
        The exit status of the first.
    """
    others: list[int] = []
    for number in range(1, count):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                die_with_parent()
                status = serve(ServerRank(number, count))
            finally:
                os._exit(status)
        others.append(pid)
    status = serve(ServerRank(0, count))
    for pid in others:
        os.waitpid(pid, 0)
    return status
