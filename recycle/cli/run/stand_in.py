"""Where a run goes on whose first process is gone, another one shows how."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from recycle.cli.console import make_console
from recycle.cli.run.shown_run import shown, tell_where
from recycle.errors import UserError
from recycle.record.following import RecordingFollower

LOOK = 0.2
"""Seconds between two looks at what the servers have written."""


class StandIn:
    """A process beside this one that sleeps until it is told that nobody shows the run any more.

    It is forked from this process, which must have no other threads. It ends when this process has, and all that were
    forked from it.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        woken, self._wake = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(woken)
            return
        try:
            os.close(self._wake)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            began = time.monotonic()
            if os.read(woken, 1):
                os.set_blocking(woken, False)
                _show(folder, woken, began)
        finally:
            os._exit(0)

    def wake(self) -> None:
        """Show the run from now on; for any process that was forked from this one."""
        os.write(self._wake, b"1")

    def end(self) -> None:
        """The run is over here: wait until that is shown."""
        os.close(self._wake)
        os.waitpid(self._pid, 0)


def _show(folder: Path, woken: int, began: float) -> None:
    from recycle.megatron.gpt.run import Run

    console, follower = make_console(error=True), RecordingFollower(folder)
    # What was shown before is read, and not shown again.
    console.quiet = True
    with shown(Run.read(folder), console, began) as watch:
        while True:
            is_over = _is_closed(woken)
            # What one look cannot read, the next one does.
            with suppress(UserError):
                for line in follower.look():
                    watch(line)
            console.quiet = False
            if is_over:
                break
            time.sleep(LOOK)
    tell_where(console, folder)


def _is_closed(pipe: int) -> bool:
    """Whether nobody can write to a pipe any more."""
    try:
        return not os.read(pipe, 1)
    except BlockingIOError:
        return False
