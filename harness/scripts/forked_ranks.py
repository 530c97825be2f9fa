"""Stands in for torchrun on one machine: ``forked_ranks.py RANKS``, with ``-m`` and a module, or a script.

Ranks are forked from one process that has imported Megatron, because that is most of what a short run asks of the
processor. Variables, store and end are as torchrun has them.
"""

import gc
import os
import signal
import sys

from harness.scripts.forks import be_main, leave
from recycle.control.host.children import die_with
from recycle.control.store.tcp_store import listen, serve


def variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Those that torchrun sets for a rank."""
    of_rank = dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank))
    of_all = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(ranks))
    host = {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    elastic = {"USE_AGENT_STORE": "True", "RESTART_COUNT": "0", "MAX_RESTARTS": "0", "RUN_ID": "forked"}
    return of_rank | of_all | host | {f"TORCHELASTIC_{name}": value for name, value in elastic.items()}


def wait_for_all(processes: list[int]) -> int:
    """The exit status of all: 1 as soon as one has failed, which ends the others."""
    status, left = 0, set(processes)
    while left:
        process, ended = os.wait()
        left.discard(process)
        if ended and not status:
            status = 1
            for each in left:
                os.kill(each, signal.SIGTERM)
    return status


def main(ranks: int, words: list[str]) -> int:
    """Run ``-m`` and a module, or a script, with its arguments in all ranks; gives the exit status."""
    listener = listen()
    port = listener.getsockname()[1]
    gc.freeze()
    processes, own = [], os.getpid()
    for rank in range(ranks):
        process = os.fork()
        if not process:
            die_with(own)
            listener.close()
            os.environ.update(variables(rank, ranks, port))
            leave(lambda: be_main(words))
        processes.append(process)
    store = serve(listener)
    status = wait_for_all(processes)
    del store
    return status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
