"""The titles of processes, by which people find them with ps, top and pkill."""

from setproctitle import setproctitle


def set_title(what: str) -> None:
    """Call this process ``recycle: ...`` from now on.

    Args:
        what: it does, for example ``W1_2``.
    """
    setproctitle(f"recycle: {what}")
