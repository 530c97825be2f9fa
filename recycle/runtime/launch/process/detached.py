"""The start of a keeper's process, which outlives the process that has started it."""

import gc
import mmap
import os
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from recycle.control.host.children import fork, ignore_signals
from recycle.runtime.keep.checkpoint_writer import CheckpointWriter
from recycle.runtime.launch.process.title import set_title
from recycle.state import keeper

_BOUND = struct.Struct("Q")

AGAIN = 1.0
"""Seconds after which a keeper that has failed is started again: where memory is short, not at once."""


def fork_keeper(listeners: Sequence[socket.socket], token: str, limit: int, within: Path | None) -> None:
    """Start a keeper that is no child of this process, and have another one where that is killed alone, or fails.

    This process must have no other threads.

    Args:
        listeners: where trainers connect; closed here.
        token: the run's.
        limit: the most bytes that may be kept.
        within: the folder in which it may write versions to disk; None where nobody asks for it.
    """
    try:
        pid = fork()
        if pid == 0:
            try:
                if os.fork() == 0:
                    _detach(listeners)
                    _guard_keeper(listeners, token, limit, within)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    finally:
        for each in listeners:
            each.close()


def _detach(listeners: Sequence[socket.socket]) -> None:
    """In a process that was forked: be nobody's any more, and hold nothing but where trainers connect."""
    os.setsid()
    ignore_signals()
    # What holds the others' numbers is never freed here.
    gc.freeze()
    # What waits for the end of a run's output, or of a connection, does not wait for the keeper. Streams and log files
    # of whoever forked it lead nowhere; were their numbers free, connections would get them, and what is said there.
    kept = {each.fileno() for each in listeners}
    null = os.open(os.devnull, os.O_RDWR)
    for handle in {*range(3), *(int(each.name) for each in Path("/proc/self/fd").iterdir())} - kept:
        os.dup2(null, handle)


def _guard_keeper(listeners: Sequence[socket.socket], token: str, limit: int, within: Path | None) -> None:
    """Have a keeper until it ends as it should. What connects while there is none waits for the next one."""
    set_title("keeper's guard")
    # What a keeper has promised to a later start of the run, those in its place keep.
    bound = mmap.mmap(-1, _BOUND.size)
    _BOUND.pack_into(bound, 0, limit)

    def promised(least: int) -> None:
        _BOUND.pack_into(bound, 0, max(least, *_BOUND.unpack(bound)))

    while True:
        try:
            pid = os.fork()
        except OSError:
            time.sleep(AGAIN)
            continue
        if pid == 0:
            try:
                set_title("keeper")
                writer = None if within is None else CheckpointWriter(token, within)
                keeper.serve(listeners, token, _BOUND.unpack(bound)[0], writer=writer, promised=promised)
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        if not status:
            return
        time.sleep(AGAIN)
