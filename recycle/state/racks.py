"""Racks: which hosts fail together."""

from collections.abc import Collection
from typing import Self

import msgspec

from recycle.state.errors import StateError


class Racks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Groups of hosts, each of which loses its power or its switch as one.

    Attributes:
        groups: the hosts of each, by name or address.
    """

    groups: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``a1,a2/b1,b2``, which are two racks.

        Raises:
            StateError: a rack is empty, or a host is in two.
        """
        if not text:
            return cls()
        groups = tuple(tuple(name.strip() for name in rack.split(",")) for rack in text.split("/"))
        names = [name for group in groups for name in group]
        if "" in names:
            raise StateError(f"{text}: give the hosts of each rack with commas, and a slash between racks")
        for name in names:
            if names.count(name) > 1:
                raise StateError(f"{text}: {name} is named twice, and a host is in one rack")
        return cls(groups)

    def __bool__(self) -> bool:
        return bool(self.groups)

    def find(self, *names: str) -> str:
        """The rack of a host, by the first of its hosts; empty where it is in none.

        Args:
            names: of the host.
        """
        return next((group[0] for group in self.groups if not {*names}.isdisjoint(group)), "")

    def require_known(self, names: Collection[str]) -> None:
        """Make sure that all hosts are there.

        Args:
            names: of the run's hosts.

        Raises:
            StateError: one is named that is none.
        """
        strange = sorted({name for group in self.groups for name in group} - {*names})
        if strange:
            raise StateError(
                f"racks: {strange[0]} is no host of this run; name them as one of {', '.join(sorted(names))}"
            )
