"""The titles of processes, by which people find them with ps, top and pkill."""

import os

from setproctitle import setproctitle, setthreadtitle


def set_title(what: str) -> None:
    """Call this process ``recycle: ...`` from now on.

    Args:
        what: it does, for example ``W1_2``. What is longer than the process's command line is cut off.
    """
    # Without this, a title takes the place of what others read as the environment of the process.
    os.environ.setdefault("SPT_NOENV", "1")
    setproctitle(f"recycle: {what}")
    # What reads /proc by words, as Slurm does for those whom it signals, loses a process whose name has a space.
    setthreadtitle("recycle")
