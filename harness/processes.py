"""Other processes of this machine. Each may end while it is looked at: then it has nothing of what is asked for."""

import os
from contextlib import suppress
from pathlib import Path

PROCESSES = Path("/proc")
UNSEEN = (FileNotFoundError, ProcessLookupError, PermissionError)
"""What the kernel says of a process that has ended: before a file of it is opened, and after; or of another user's."""

_PARENT, _USER, _SYSTEM = 1, 11, 12


def processes() -> list[int]:
    """All that there are."""
    return [int(each.name) for each in PROCESSES.iterdir() if each.name.isdecimal()]


def title(process: int) -> str:
    """Its command line, or what it has put there."""
    return _read(process, "cmdline").replace("\0", " ").strip()


def environment(process: int) -> dict[str, str]:
    """The environment with which its program was started; a forked process has that of its parent."""
    pairs = (each.partition("=") for each in _read(process, "environ").split("\0"))
    return {name: value for name, found, value in pairs if found}


def is_running(process: int) -> bool:
    """Whether it has not ended; one that no parent has asked about has."""
    fields = _fields(process)
    return bool(fields) and fields[0] not in ("Z", "X")


def is_stopped(process: int) -> bool:
    """Whether a signal has stopped it, and it does not go on yet."""
    fields = _fields(process)
    return bool(fields) and fields[0] == "T"


def seconds_of(process: int) -> float:
    """Seconds of the processor that it has used."""
    fields = _fields(process)
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def seconds_waited(process: int) -> float:
    """Seconds for which it was ready to go on, and others had the processor."""
    fields = _read(process, "schedstat").split()
    return int(fields[1]) / 1e9 if fields else 0.0


def score_for_want_of_memory(process: int) -> int:
    """The kernel ends first what has most of it; 0 if it has ended."""
    return int(_read(process, "oom_score") or 0)


def parent(process: int) -> int | None:
    """The process above it."""
    fields = _fields(process)
    return int(fields[_PARENT]) if fields else None


def ancestors(process: int) -> list[int]:
    """The processes above it, up to the first of all."""
    found = []
    above = parent(process)
    while above:
        found.append(above)
        above = parent(above)
    return found


def children(process: int) -> list[int]:
    """The processes that it has started, in that order where one of its threads has started all."""
    return [
        int(each) for thread in _list(process, "task") for each in _read(process, f"task/{thread}/children").split()
    ]


def thread_names(process: int) -> list[str]:
    """What its threads are called."""
    names = (_read(process, f"task/{thread}/comm").strip() for thread in _list(process, "task"))
    return [name for name in names if name]


def open_files(process: int) -> dict[int, str]:
    """What each file descriptor of it is of."""
    found = {}
    for number in _list(process, "fd"):
        with suppress(*UNSEEN):
            found[number] = str((PROCESSES / str(process) / "fd" / str(number)).readlink())
    return found


def family(root: int) -> set[int]:
    """A process and all that came from it."""
    parents = {process: parent(process) for process in processes()}
    found = {root}
    while more := {process for process, above in parents.items() if above in found} - found:
        found |= more
    return found


def send_signal(process: int, number: int) -> None:
    """Send it a signal, if it has not ended."""
    with suppress(ProcessLookupError):
        os.kill(process, number)


def _fields(process: int) -> list[str]:
    """Of its state: the letter of that, its parent, and so on."""
    # The field before is a name in brackets, which may hold anything.
    return _read(process, "stat").rpartition(")")[2].split()


def _list(process: int, name: str) -> list[int]:
    try:
        return sorted(int(each.name) for each in (PROCESSES / str(process) / name).iterdir())
    except UNSEEN:
        return []


def _read(process: int, name: str) -> str:
    try:
        return (PROCESSES / str(process) / name).read_text(errors="replace")
    except UNSEEN:
        return ""
