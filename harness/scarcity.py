"""Processes to which the system gives no further process and no thread."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 54321
"""A user that has no other processes."""


@contextmanager
def nothing_starts() -> Iterator[None]:
    """Within the block, this process starts nothing. From then on its user is not root, which has no such limit."""
    if not os.getuid():
        os.setuid(NOBODY)
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, before)
