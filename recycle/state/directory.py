"""The directory of a run's keepers: where they are, whose parts each one keeps, and what lost hosts take along."""

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Annotated, Self

import msgspec

from recycle.control.board import keys
from recycle.control.store.sealed_store import SealedStore
from recycle.control.store.store import Store
from recycle.job import Server
from recycle.state.channel import HERE, Address
from recycle.state.errors import StateError
from recycle.state.redundancy import Redundancy
from recycle.wording import memory_text

Holders = tuple[int, ...]
"""Hosts that hold the same state."""


class KeeperHome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a keeper is.

    Attributes:
        host: the name of its host, for people.
        address: at which other hosts reach that.
        port: of the keeper there; 0 where no other host is in the run.
    """

    host: Annotated[str, msgspec.Meta(max_length=256)]
    address: Annotated[str, msgspec.Meta(max_length=256)]
    port: Annotated[int, msgspec.Meta(ge=0, lt=2**16)]

    def name(self, address: str) -> str:
        """What it is called on a host.

        Args:
            address: of that host.
        """
        return "this host's keeper" if self.address == address else f"the keeper of {self.host} ({self.address})"

    def reach(self, address: str) -> Address:
        """How a process reaches it.

        Args:
            address: of the process's host.
        """
        return HERE if self.address == address else (self.address, self.port)


class KeeperDirectory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All keepers of a run.

    Attributes:
        homes: of each host's keeper.
        redundancy: how many of them hold something of each host's parts, its own among them, and how many must be left.
        on: the host of each server, as its place among the homes, where it was when the run began.
    """

    homes: tuple[KeeperHome, ...]
    redundancy: Redundancy
    on: Mapping[str, int]

    @classmethod
    def read(cls, store: Store, token: str) -> Self | None:
        """The directory of a run, if it has keepers.

        Raises:
            StoreLost: there is no store.
        """
        return SealedStore(store, token).read(keys.KEEPERS, cls)

    def tell(self, store: Store, token: str) -> None:
        """Let all processes of the run read it.

        Raises:
            StoreLost: there is no store.
        """
        SealedStore(store, token).write(keys.KEEPERS, self)

    def replace(self, place: int, home: KeeperHome, store: Store, token: str) -> bool:
        """Tell all processes that another host's keeper has taken the place of one, unless this was changed meanwhile.

        Args:
            place: whose it was.
            home: of the other one.
            store: where this was read.
            token: the run's.

        Raises:
            StoreLost: there is no store.
        """
        homes = tuple(home if number == place else each for number, each in enumerate(self.homes))
        sealed = SealedStore(store, token)
        now = store.get(keys.KEEPERS)
        if now is None or sealed.find(keys.KEEPERS, now, KeeperDirectory) != self:
            return False
        changed = sealed.seal(keys.KEEPERS, msgspec.structs.replace(self, homes=homes))
        return store.compare_set(keys.KEEPERS, now, changed) == changed

    def address_of(self, server: Server) -> str:
        """Of the host on which a server began; empty if it did not begin with the run."""
        place = self.on.get(str(server))
        return "" if place is None else self.homes[place].address

    def vacant(self, server: Server, taken: Collection[str]) -> Sequence[int]:
        """The hosts on which no server lives, that of a server at the start of the run first.

        Args:
            server: which.
            taken: the addresses of hosts on which servers live, wherever these were at the start.
        """
        free = [place for place, home in enumerate(self.homes) if home.address not in taken]
        own = self.on.get(str(server))
        return sorted(free, key=lambda place: place != own)

    def place(self) -> tuple[tuple[int, ...], ...]:
        """Which hosts hold each host's parts, in the order of the pieces: itself first.

        Groups are made along the pipelines, so that the hosts of a group hold different stages if that can be:
        whatever the order of ranks, the loss of a stage's servers then leaves a host that has their parts.

        Raises:
            StateError: there are not so many hosts.
        """
        hosts, pieces = len(self.homes), self.redundancy.pieces
        if lack := self.redundancy.lacks_hosts(hosts):
            raise StateError(f"keep-in-memory {self.redundancy}: {lack}")
        order = self._along_pipelines()
        # Each host is the first of its own holders.
        return tuple(sorted(tuple(order[each] for each in holders) for holders in place_copies(hosts, pieces)))

    def keepers_of(self, server: Server) -> Sequence[KeeperHome]:
        """Who keeps a server's parts, in the order of the pieces; of one that was not there, as of a peer."""
        peers = (place for name, place in sorted(self.on.items()) if Server.parse(name).stage == server.stage)
        place = self.on.get(str(server), next(peers))
        return [self.homes[each] for each in self.place()[place]]

    def host_names(self, address: str) -> Mapping[str, str]:
        """What each keeper's host is called, by what the keeper is called on one of them.

        Args:
            address: of that one.
        """
        names = [each.host for each in self.homes]
        return {
            each.name(address): each.host if names.count(each.host) == 1 else f"{each.host} ({each.address})"
            for each in self.homes
        }

    def stages(self) -> Sequence[frozenset[int]]:
        """Which stages' parts may come to each host's keeper."""
        placed = self.place()
        found: list[set[int]] = [set() for _ in self.homes]
        for server, host in self._servers():
            for place in placed[host]:
                found[place].add(server.stage)
        return [frozenset(each) for each in found]

    @property
    def survived(self) -> int:
        """So many hosts, whichever, may be lost at once: each stage has a live server, or all its parts."""
        return min(map(len, self._fatal())) - 1

    def describe(self, whole: int, most: int) -> str:
        """What keeping costs and survives, in a line.

        Args:
            whole: the bytes of a version of all stages.
            most: the bytes that a keeper takes at most.
        """
        there, taken = self.redundancy.sent(whole), self.redundancy.taken(whole)
        sent = f", {memory_text(there, 'B')} of them to other hosts" if there else ""
        hosts = "any one host" if self.survived == 1 else f"any {self.survived} hosts at once"
        survived = f", and that of {hosts}" if self.survived else ""
        return (
            f"the state is kept in memory ({self.redundancy}): {memory_text(taken, 'B')} are copied in every "
            f"iteration{sent}, and a keeper takes at most {memory_text(most, 'B')}; survived are the loss of all "
            f"servers of a stage{survived}"
        )

    def _along_pipelines(self) -> Sequence[int]:
        """The places of all hosts in the order of their first servers, and then of those where none begins."""
        first: dict[int, Server] = {}
        for server, place in self._servers():
            first[place] = min(server, first.get(place, server))
        return [*sorted(first, key=first.__getitem__), *(each for each in range(len(self.homes)) if each not in first)]

    def _servers(self) -> Sequence[tuple[Server, int]]:
        return [(Server.parse(name), place) for name, place in self.on.items()]

    def _fatal(self) -> set[frozenset[int]]:
        """Hosts whose loss at once loses something: all of a stage's servers, with too many pieces of a part."""
        placed = self.place()
        hosts: dict[int, set[int]] = {}
        kept = {(server.stage, host) for server, host in self._servers()}
        for stage, host in kept:
            hosts.setdefault(stage, set()).add(host)
        return {
            frozenset({*hosts[stage], *gone})
            for stage, host in kept
            for gone in combinations(placed[host], self.redundancy.spare + 1)
        }


def place_copies(hosts: int, copies: int) -> tuple[Holders, ...]:
    """Which hosts hold each host's state, itself first: Gemini's Algorithm 1 (SOSP'23).

    Groups of as many hosts as there are copies keep each other's state; so many that the rest is less than two groups,
    and in that rest each host is kept by those behind it in a ring.

    Args:
        hosts: how many there are.
        copies: of each state, one's own among them; not more than there are hosts.
    """
    begins = [copies * group for group in range(hosts // copies)]
    return tuple(
        tuple(begin + (place + step) % (end - begin) for step in range(copies))
        for begin, end in pairwise([*begins, hosts])
        for place in range(end - begin)
    )
