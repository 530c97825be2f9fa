"""What another user of this machine does, in a process of its own; only root can have that tried."""

import os
import resource
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness.hosts import Host

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


def readable(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """The files in a folder, and in those below it, that this process can read, with what is in them.

    Raises:
        AssertionError: something there can be written.
    """
    for place, folders, files in os.walk(folder):
        for path in [Path(place, each) for each in (".", *folders, *files)]:
            assert not os.access(path, os.W_OK), f"{path} can be written"
        for path in [Path(place, each) for each in files]:
            with suppress(PermissionError, FileNotFoundError):
                yield path.relative_to(folder), path.read_bytes()


@contextmanager
def as_stranger(act: Callable[[], object], on: Host | None = None) -> Iterator[None]:
    """Within the block, another user has done something, and what it has opened is still open.

    Args:
        act: what it does; what goes wrong in it fails the block.
        on: the host that it is a user of; None for this machine.
    """
    done, has_done = os.pipe()
    over, is_over = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(done)
            os.close(is_over)
            if on is not None:
                on.enter_network()
            become_stranger()
            held = act()
            os.write(has_done, b"x")
            os.read(over, 1)
            del held
            status = 0
        except BaseException:
            traceback.print_exc()
            raise
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
