"""Which processes a run's servers are, by what they write when they begin to record."""

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
