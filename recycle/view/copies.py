"""Where the copies of a run's state are: on live servers, and in the memory of hosts."""

from collections.abc import Iterable, Sequence

import msgspec

from recycle.holding import units, units_of
from recycle.job import Job, Server
from recycle.record.recording import CopyLine, Line
from recycle.state.ladder import Copy, StatePart, find_outdated, find_whole, is_late
from recycle.wording import plural

NAMED = 4
"""So many hosts are named; more are counted."""


class StageCopies(msgspec.Struct, frozen=True):
    """Where a stage's state is.

    Attributes:
        stage: which.
        live: the live servers of it, which all have its newest version.
        version: the newest version that hosts have in memory as a whole, as the number of iterations that have made it;
            None if there is none.
        hosts: those that have a part of that version, each with how many parts.
        parts: of the version.
        needed: how many hosts of a part must be left to have it.
    """

    stage: int
    live: tuple[str, ...]
    version: int | None = None
    hosts: tuple[tuple[str, int], ...] = ()
    parts: int = 1
    needed: int = 1

    @property
    def is_last(self) -> bool:
        """Whether the death of one server loses it."""
        return len(self.live) <= 1 and self.version is None

    @property
    def text(self) -> str:
        """In words."""
        live = f"on {plural(len(self.live), 'live server')}" if self.live else "on no live server"
        if self.is_last:
            return f"{live}, and nowhere else"
        if self.version is None:
            return live
        enough = f", any {self.needed} of which are enough for a part" if self.needed > 1 else ""
        return f"{live}; after iteration {self.version} in memory of {self._holders}{enough}"

    @property
    def _holders(self) -> str:
        if len(self.hosts) > NAMED:
            return plural(len(self.hosts), "host")
        return ", ".join(
            host if count == self.parts else f"{host} ({count} of {self.parts} parts)" for host, count in self.hosts
        )


class KnownCopies:
    """What hosts have in memory, by what servers have told of what they have put there.

    A keeper forgets by the same rule as here. That of a host is taken to be gone, with all that it had, when it does
    not get what a server has put there before.
    """

    def __init__(self) -> None:
        self._held: dict[str, set[StatePart]] = {}
        self._reached: dict[str, frozenset[str]] = {}
        self._needed = 1

    def add(self, lines: Iterable[CopyLine]) -> None:
        """Take in what servers have put, in any order."""
        for line in sorted(lines, key=lambda line: (line.epoch, line.version)):
            self._add(line)

    def stages(self, live: Iterable[Sequence[str]]) -> tuple[StageCopies, ...]:
        """Where the state of each stage is.

        Args:
            live: the live servers of each stage.
        """
        copies = [Copy(part, host, 0) for host, held in self._held.items() for part in held]
        whole = find_whole(copies)
        found = []
        for stage, servers in enumerate(live):
            versions = {number: parts for number, parts in whole.get(stage, {}).items() if self._is_enough(parts)}
            if not versions:
                found.append(StageCopies(stage, tuple(servers)))
                continue
            version = max(versions)
            wanted = frozenset(versions[version])
            held = [(host, len(wanted & held)) for host, held in sorted(self._held.items()) if wanted & held]
            found.append(StageCopies(stage, tuple(servers), version, tuple(held), len(wanted), self._needed))
        return tuple(found)

    def _is_enough(self, parts: Iterable[StatePart]) -> bool:
        """Whether of each part there is as much as is needed to have it."""
        return all(sum(part in held for held in self._held.values()) >= self._needed for part in parts)

    def _add(self, line: CopyLine) -> None:
        self._needed = line.needed
        part = StatePart(line.stage, line.epoch, line.version, line.number, line.parts, line.began)
        for host in self._reached.get(line.server, frozenset()).difference(line.hosts):
            self._held.pop(host, None)
        self._reached[line.server] = frozenset(line.hosts)
        for host in line.hosts:
            held = self._held.setdefault(host, set())
            if is_late(held, part):
                continue
            held -= find_outdated(held, part)
            held.add(part)


def live_by_unit(job: Job, servers: Iterable[str]) -> list[list[str]]:
    """The live servers of each stage, or of each chunk where pipelines differ.

    Args:
        job: with its present layout.
        servers: that are live.
    """
    found: list[list[str]] = [[] for _ in units(job)]
    for server in sorted(map(Server.parse, servers)):
        for unit in units_of(job, server):
            found[unit].append(str(server))
    return found


def copies_of(lines: Iterable[Line], job: Job, servers: Iterable[str]) -> tuple[StageCopies, ...]:
    """Where the state of each stage of a run is, by its recordings; nothing where none was kept in memory.

    Args:
        lines: of the recordings.
        job: that it trains.
        servers: that are live.
    """
    copies, made = KnownCopies(), [line for line in lines if isinstance(line, CopyLine)]
    copies.add(made)
    return copies.stages(live_by_unit(job, servers)) if made else ()


def copies_lines(copies: Iterable[StageCopies]) -> list[str]:
    """A line for each stage."""
    return [f"state of stage {each.stage}: {each.text}" for each in copies]
