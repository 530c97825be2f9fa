"""The threads in which torch works for gloo, and the end of a process."""

import time
from contextlib import suppress
from pathlib import Path

NAME = "pt_gloo_runloop"
LOOK = 0.001
PATIENCE = 5.0


def let_go() -> None:
    """Wait until these threads have let go of all tensors; a process that has summed any should do so at its end.

    Who waited for a sum may go on before the thread has let go of the tensor. If Python ends meanwhile, the thread asks
    it for its lock in vain, and the process dies of SIGABRT instead of ending with its exit status.
    """
    end = time.monotonic() + PATIENCE
    looks = 0
    # A thread that waits for Python's lock looks idle too, and gets it between two looks.
    while looks < 2 and time.monotonic() < end:
        looks = 0 if _is_busy() else looks + 1
        time.sleep(LOOK)


def _is_busy() -> bool:
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            # The name is in brackets, and before the state.
            name, _, rest = (thread / "stat").read_text().rpartition(") ")
            if name.endswith(f"({NAME}") and rest[0] != "S":
                return True
    return False
