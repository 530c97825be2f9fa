"""The directory of a run's keepers: where they are, and whose parts each one keeps."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Self

import msgspec

from recycle.control import keys
from recycle.control.sealed_store import SealedStore
from recycle.control.store import Store
from recycle.job import Server
from recycle.state.channel import Address
from recycle.state.keeper import keeper_address
from recycle.state.placement import place_copies, survival


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

    def reach(self, address: str, token: str) -> Address:
        """How a process reaches it.

        Args:
            address: of the process's host.
            token: the run's.
        """
        return keeper_address(token) if self.address == address else (self.address, self.port)


class KeeperDirectory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All keepers of a run.

    Attributes:
        homes: of each host's keeper.
        copies: how many of them hold each host's parts, its own among them.
        on: the host of each server, as its place among the homes, where it was when the run began.
    """

    homes: tuple[KeeperHome, ...]
    copies: Annotated[int, msgspec.Meta(ge=1)]
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

    def place(self) -> tuple[tuple[int, ...], ...]:
        """Which hosts hold each host's parts, itself first.

        Raises:
            StateError: there are not so many hosts.
        """
        return place_copies([str(place) for place in range(len(self.homes))], self.copies)

    def keepers_of(self, server: Server) -> Sequence[KeeperHome]:
        """Who keeps a server's parts, the one of its own host first; of one that was not there, as of a peer."""
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

    def stages_at(self, place: int) -> frozenset[int]:
        """Which stages' parts may come to a host's keeper."""
        placed = self.place()
        return frozenset(Server.parse(name).stage for name, host in self.on.items() if place in placed[host])

    def survival(self, lost: int) -> float:
        """The probability that some hosts lost at once leave every stage with a live server, or all its parts."""
        placed = self.place()
        hosts: dict[int, set[int]] = {}
        for name, host in self.on.items():
            hosts.setdefault(Server.parse(name).stage, set()).add(host)
        states = [{*hosts[Server.parse(name).stage], *placed[host]} for name, host in self.on.items()]
        return survival(len(self.homes), states, lost)
