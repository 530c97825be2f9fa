"""The keepers of a run, as one of its servers finds them."""

from collections.abc import Mapping
from contextlib import suppress

from recycle.control.membership.errors import StoreLost
from recycle.job import Server
from recycle.runtime.keep.keeping import KnownKeepers
from recycle.runtime.net.endpoint import Endpoint
from recycle.state.client import KeeperClient
from recycle.state.directory import KeeperDirectory, KeeperHome


class KeeperFinder:
    """Finds them in the run's store; another host's may take the place of one between two views.

    Args:
        directory: as it is in the store.
        endpoint: of the store, and this host.
        server: whose parts they keep.
        every: they write every so many versions to disk; 0 where they write none.
    """

    def __init__(self, directory: KeeperDirectory, endpoint: Endpoint, server: Server, every: int = 0) -> None:
        self._endpoint = endpoint
        self._server = server
        self._every = every
        self._hosts: dict[str, str] = {}
        self._known = self._know(directory)

    @property
    def hosts(self) -> Mapping[str, str]:
        """What the host of each keeper is called that was ever known, by what that is called here."""
        return self._hosts

    def find(self) -> KnownKeepers:
        """Those of the run now; those of the last time where the store is lost."""
        with suppress(StoreLost):
            found = KeeperDirectory.read(self._endpoint.connect(), self._endpoint.token)
            self._known = self._known if found is None else self._know(found)
        return self._known

    def _know(self, directory: KeeperDirectory) -> KnownKeepers:
        address = self._endpoint.address
        self._hosts.update(directory.host_names(address))
        own = directory.keepers_of(self._server)
        others = [each for each in directory.homes if each not in own]
        near = next((each.name(address) for each in directory.homes if each.address == address), "")
        return KnownKeepers(
            [*map(self._reach, own)], directory.redundancy, [*map(self._reach, others)], near, self._every
        )

    def _reach(self, home: KeeperHome) -> KeeperClient:
        endpoint = self._endpoint
        return KeeperClient(home.reach(endpoint.address), endpoint.token, home.name(endpoint.address))
