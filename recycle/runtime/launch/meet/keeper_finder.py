"""The keepers of a run, as one of its servers finds them, puts its versions with them, and tells of that."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

from recycle.control.membership.errors import StoreLost
from recycle.control.membership.view import ServerRank, View
from recycle.job import Server
from recycle.record.recording import CopyLine, InstantLine
from recycle.record.reporting import Reporter
from recycle.runtime.keep.keeping import Keeping, KeptStage, KnownKeepers
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.recover.view_reports import now
from recycle.state.client import KeeperClient
from recycle.state.directory import KeeperDirectory, KeeperHome
from recycle.state.ladder import StatePart


class KeeperFinder:
    """Finds them in the run's store; another host's may take the place of one between two views.

    Args:
        directory: as it is in the store.
        endpoint: of the store, and this host.
        server: whose parts they keep.
        reporter: is told what the user should know.
        every: they write every so many versions to disk; 0 where they write none.
    """

    def __init__(
        self, directory: KeeperDirectory, endpoint: Endpoint, server: Server, reporter: Reporter, every: int = 0
    ) -> None:
        self._endpoint = endpoint
        self._server = server
        self._reporter = reporter
        self._every = every
        # What the host of each keeper is called that was ever known, by what that is called here.
        self._hosts: dict[str, str] = {}
        self._known = self._know(directory)

    def keeping(self, source: KeptStage, rank: ServerRank, depth: int, view: Callable[[], View]) -> Keeping:
        """What puts a rank's parts of its versions with keepers, and gets versions from there.

        Args:
            source: the versions.
            rank: of the server.
            depth: P.
            view: gives the view in which the server works.
        """
        return Keeping(self.find, self._server, depth, source, view, self.tell, self._tell_copies, rank)

    def tell(self, kind: Literal["warning", "memory"], text: str) -> None:
        """Tell the user something of keepers."""
        self._reporter.tell(InstantLine(kind, now(), str(self._server), text))

    def _tell_copies(self, part: StatePart, keepers: Sequence[str]) -> None:
        place = part.stage, part.epoch, part.version, part.number, part.parts, part.began
        self._reporter.tell(CopyLine(str(self._server), *place, [self._hosts[each] for each in keepers], part.needed))

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
