"""How many processors this process may use."""

import os


def processors() -> int:
    """Those that it is allowed, by taskset, Slurm or a container, and not all that the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
