"""Which processes a run's servers are, by what they write when they begin to record."""

import math
import os
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from recycle.record.recording import EndedLine, ProcessLine

SLACK = 60.0
"""Seconds by which the clocks of a machine and of its files may differ."""


class Processes:
    """The newest process of each server: lives are counted anew where a run goes on."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[tuple[float, int], ProcessLine]] = {}
        self._ended: set[str] = set()

    def add(self, line: ProcessLine | EndedLine) -> None:
        """Take in what a process has written."""
        if isinstance(line, EndedLine):
            self._ended.add(line.name)
            return
        # A run that goes on has processes of the same names.
        self._ended.discard(line.name)
        server, _, life = line.name.partition("#")
        age = -math.inf if line.time is None else line.time, int(life or 0)
        if server not in self._newest or age >= self._newest[server][0]:
            self._newest[server] = age, line

    def of(self, server: str) -> ProcessLine | None:
        """That of a server; None if it has not written anything."""
        return self._newest[server][1] if server in self._newest else None

    def all(self) -> Iterator[ProcessLine]:
        """The newest of each, the launcher among them."""
        return (line for _, line in self._newest.values())

    def is_gone(self, process: ProcessLine, heard: float) -> bool:
        """Whether one of them has ended: it said so, or was on this machine and is not there any more.

        Args:
            process: which.
            heard: when any process of the run has last written something, in seconds since 1970. Whatever began after
                that is another process, which has the number now.
        """
        return process.name in self._ended or _is_gone(process, heard)


def numbering() -> int | None:
    """Which numbering of processes this process sees; None where the system does not tell."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None


@cache
def clock_name() -> str:
    """The name of this machine's clock since it was started; what runs in its containers has the same."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _is_gone(process: ProcessLine, heard: float) -> bool:
    """Whether a process of this machine has ended; of other machines and containers nothing is known."""
    if process.host != socket.gethostname() or process.numbering not in (None, numbering()):
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is there, and another user's
        pass
    began = _began(process.pid)
    return began is not None and began > heard + SLACK


def _began(pid: int) -> float | None:
    """When a process began, in seconds since 1970; None where that is not told."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
        booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return int(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
