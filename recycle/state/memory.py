"""How much memory this host has left, as far as the container allows."""

import re
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def available_memory(proc: Path = Path("/proc"), cgroups: Path = ROOT) -> int:
    """Bytes that may still be taken: of the machine's memory, and of each control group that this process is in.

    Args:
        proc: where the kernel tells of processes and memory.
        cgroups: where it tells of control groups; what is not there sets no limit.
    """
    known = re.search(r"^MemAvailable:\s+([0-9]+) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    assert known is not None, "every Linux since 3.14 says this"
    left = [1024 * int(known[1])]
    own = re.search(r"^0::/(.*)$", (proc / "self" / "cgroup").read_text(), re.MULTILINE)
    folder = cgroups / (own[1] if own is not None else "")
    for each in (folder, *folder.parents):
        if each.is_relative_to(cgroups):
            left.append(_left_in(each))
    return max(0, min(left))


def _left_in(folder: Path) -> int:
    """What a control group may still take; more than any machine has where nothing limits it."""
    try:
        most, taken = (folder / "memory.max").read_text(), (folder / "memory.current").read_text()
    except OSError:
        return 1 << 62
    return 1 << 62 if most.strip() == "max" else int(most) - int(taken)
