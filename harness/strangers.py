"""What another user of this machine does, in a process of its own; only root can have that tried."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

STRANGER = 65534
"""The user that nothing belongs to."""

_FILES = 20_000

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
"""Of tests that need one."""


def become_stranger() -> None:
    """Be that user from now on, in this process."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    os.setgroups([])
    os.setresgid(STRANGER, STRANGER, STRANGER)
    os.setresuid(STRANGER, STRANGER, STRANGER)


@contextmanager
def as_stranger(act: Callable[[], object]) -> Iterator[None]:
    """Within the block, another user has done something, and what it has opened is still open.

    Args:
        act: what it does; what goes wrong in it fails the block.
    """
    done, has_done = os.pipe()
    over, is_over = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(done)
            os.close(is_over)
            become_stranger()
            held = act()
            os.write(has_done, b"x")
            os.read(over, 1)
            del held
            status = 0
        finally:
            os._exit(status)
    os.close(has_done)
    os.close(over)
    try:
        assert os.read(done, 1), "the stranger has failed"
        yield
    finally:
        os.close(is_over)
        os.close(done)
        assert os.waitpid(pid, 0)[1] == 0, "the stranger has failed"
