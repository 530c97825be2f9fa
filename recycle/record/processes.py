"""Which processes a run's servers are, by what they write when they begin to record."""

import os
import socket
from collections.abc import Iterator

from recycle.record.recording import ProcessLine


class Processes:
    """The newest process of each server."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, ProcessLine]] = {}

    def add(self, line: ProcessLine) -> None:
        """Take in what a process has written."""
        server, _, life = line.name.partition("#")
        number = int(life or 0)
        if number >= self._newest.get(server, (-1, line))[0]:
            self._newest[server] = number, line

    def of(self, server: str) -> ProcessLine | None:
        """That of a server; None if it has not written anything."""
        return self._newest[server][1] if server in self._newest else None

    def all(self) -> Iterator[ProcessLine]:
        """The newest of each, the launcher among them."""
        return (line for _, line in self._newest.values())


def is_gone(process: ProcessLine) -> bool:
    """Whether a process of this machine has ended; of other machines nothing is known."""
    if process.host != socket.gethostname():
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is there, and another user's
        return False
    return False
