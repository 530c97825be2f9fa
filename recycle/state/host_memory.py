"""How much memory this host has, and has left, as far as the container allows."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT, PROC = Path("/sys/fs/cgroup"), Path("/proc")


def available_memory(proc: Path = PROC, cgroups: Path = ROOT) -> int:
    """Bytes that may still be taken: of the machine's memory, and of each control group that this process is in.

    Args:
        proc: where the kernel tells of processes and memory.
        cgroups: where it tells of control groups; what is not there sets no limit.
    """
    left = [most - taken for most, taken in _limits(proc, cgroups)]
    return max(0, min(_of_machine(proc, "MemAvailable"), *left))


def total_memory(proc: Path = PROC, cgroups: Path = ROOT) -> int:
    """Bytes that this process and all beside it may ever take; see ``available_memory``."""
    return min(_of_machine(proc, "MemTotal"), *(most for most, _ in _limits(proc, cgroups)))


def _of_machine(proc: Path, name: str) -> int:
    known = re.search(rf"^{name}:\s+([0-9]+) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    assert known is not None, "every Linux since 3.14 says this"
    return 1024 * int(known[1])


def _limits(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """What each control group may take, and has taken; more than any machine has where nothing limits it."""
    own = re.search(r"^0::/(.*)$", (proc / "self" / "cgroup").read_text(), re.MULTILINE)
    folder = cgroups / (own[1] if own is not None else "")
    yield 1 << 62, 0
    for each in (folder, *folder.parents):
        if each.is_relative_to(cgroups):
            try:
                most, taken = (each / "memory.max").read_text(), (each / "memory.current").read_text()
            except OSError:
                continue
            if most.strip() != "max":
                yield int(most), int(taken) - _files(each)


def _files(group: Path) -> int:
    """Bytes of files that the kernel has in a control group's memory: it drops them for who needs room."""
    try:
        counted = (group / "memory.stat").read_text()
    except OSError:
        return 0
    return sum(map(int, re.findall(r"^(?:in)?active_file ([0-9]+)$", counted, re.MULTILINE)))
