"""How many processors this process may use, and processes that compute on them."""

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager


def processors() -> int:
    """Those that it is allowed, by taskset, Slurm or a container, and not all that the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with a block: at once if it is left by an error, or by Ctrl-C.

    Cancel no future of it, nor use its `map`, which does: an executor that lost its processes fails on futures that
    are cancelled.

    Args:
        workers: how many.
    """
    # Processes that are spawned would run a user's script again.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _begin_worker) as executor:
        try:
            yield executor
        except BaseException:
            # What they compute would be waited for.
            for process in list((executor._processes or {}).values()):  # noqa: SLF001 - what kills them is there from Python 3.14 on
                process.kill()
            raise


def _begin_worker() -> None:
    """In a worker, before anything else."""
    # Ctrl-C reaches every process of a terminal. Who started the workers ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="end with parent", daemon=True).start()
    # What the caller's process had of other things is not walked, nor freed, in another one.
    gc.freeze()


def _end_with_parent() -> None:
    """Workers that wait for each other's queue would never notice that who started them was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only workers have this thread"
    parent.join()
    os._exit(1)
