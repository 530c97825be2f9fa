"""The threads in which torch works for gloo, and the end of a process."""

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

NAME = "pt_gloo_runloop"
PATIENCE = 5.0
SLEEPS = "voluntary_ctxt_switches:"


def let_go() -> None:
    """Wait until these threads have let go of all tensors; a process that has summed any should do so at its end.

    Who waited for a sum may go on before the thread has let go of the tensor. If Python ends meanwhile, the thread asks
    it for its lock in vain, and the process dies of SIGABRT instead of ending with its exit status.
    """
    end = time.monotonic() + PATIENCE
    sleeps: Mapping[str, str] | None = None
    while time.monotonic() < end:
        before, sleeps = sleeps, _sleeps()
        if sleeps is not None and sleeps == before:
            return
        # A thread that waits for Python's lock sleeps as well, and wakes up within this time to ask for it.
        time.sleep(2 * sys.getswitchinterval())


def _sleeps() -> Mapping[str, str] | None:
    """How often each of these threads has gone to sleep so far; None if one is awake."""
    found = {}
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            # The name is in brackets, and before the state.
            name, _, rest = (thread / "stat").read_text().rpartition(") ")
            if not name.endswith(f"({NAME}"):
                continue
            if rest[0] != "S":
                return None
            found[thread.name] = (thread / "status").read_text().partition(SLEEPS)[2].split()[0]
    return found
