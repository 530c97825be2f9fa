"""The titles of processes, by which people find them with ps, top and pkill."""

import os
from pathlib import Path

from setproctitle import setproctitle, setthreadtitle

_OURS = "recycle: "


def set_title(what: str) -> None:
    """Call this process ``recycle: ...`` from now on.

    Args:
        what: it does, for example ``W1_2``. What is longer than the process's command line is cut off.
    """
    # Without this, a title takes the place of what others read as the environment of the process.
    os.environ.setdefault("SPT_NOENV", "1")
    setproctitle(f"{_OURS}{what}")
    # What reads /proc by words, as Slurm does for those whom it signals, loses a process whose name has a space.
    setthreadtitle("recycle")


def has_title(pid: int, what: str) -> bool:
    """Whether a process of this machine is called so: its number may be another program's by now.

    Args:
        pid: its number.
        what: the first word of its title, for example ``W1_2``.
    """
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return False
    return title.startswith(_OURS) and title.removeprefix(_OURS).split()[:1] == [what]
