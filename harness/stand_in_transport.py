"""A transport over the stand-in for NCCL.

It has a communicator for each direction of a link, because both ends may send before they receive; makes
all communicators of a view anew; and gives up by abort, never by destroy.
"""

import time
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, Store

from harness.stand_in import LOOK, Communicator, Library
from recycle.control.view import SOLE, ServerRank, View
from recycle.job import Server
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.net.network import Network, NetworkOptions, PrivateLink


class UnderWay:
    """A transfer or a reduction."""

    def __init__(self, library: Library, communicator: Communicator, place: int, timeout: timedelta) -> None:
        self._library = library
        self._communicator = communicator
        self._place = place
        self._timeout = timeout.total_seconds()

    def wait(self) -> None:
        """See Transfer."""
        end = time.monotonic() + self._timeout
        communicator, changed = self._communicator, self._library.changed
        while not communicator.is_over(self._place):
            self._library.check()
            if time.monotonic() > end:
                raise ConnectionLost("nobody answers")
            with changed:
                changed.wait_for(lambda: communicator.is_over(self._place), LOOK)
        if communicator.aborted:
            raise ConnectionLost("it was aborted")


class OrderedGroup:
    """A group over one communicator."""

    def __init__(self, library: Library, communicator: Communicator, timeout: timedelta) -> None:
        self._library = library
        self._communicator = communicator
        self._timeout = timeout

    def start(self, kind: str, tensor: torch.Tensor) -> UnderWay:
        """Give an operation to the communicator."""
        self._library.check()
        try:
            place = self._communicator.start(kind, tensor)
            return UnderWay(self._library, self._communicator, place, self._timeout)
        except RuntimeError as error:
            raise ConnectionLost(str(error)) from error

    def start_sum(self, tensor: torch.Tensor) -> UnderWay:
        """See Group."""
        return self.start("sum", tensor)

    def start_maximum(self, tensor: torch.Tensor) -> UnderWay:
        """See Group."""
        return self.start("maximum", tensor)

    def sum(self, tensor: torch.Tensor) -> None:
        """See Group."""
        self.start_sum(tensor).wait()

    def maximum(self, tensor: torch.Tensor) -> None:
        """See Group."""
        self.start_maximum(tensor).wait()


class OrderedLink:
    """A link over two communicators of two, one for each direction."""

    def __init__(self, there: OrderedGroup, back: OrderedGroup) -> None:
        self._there, self._back = there, back

    def send(self, tensor: torch.Tensor, _: Any) -> UnderWay:
        """See Link."""
        return self._there.start("send", tensor)

    def receive(self, tensor: torch.Tensor, _: Any) -> UnderWay:
        """See Link."""
        return self._back.start("receive", tensor)


class Meeting:
    """Makes groups and links, and gives them up."""

    def __init__(
        self, library: Library, store: Store, options: NetworkOptions, check: Callable[[], None], plane: str = ""
    ) -> None:
        self.one_queue = library.one_queue
        self._library = library
        self._plane = plane
        self._store = store
        self._options = options
        self._check = check
        self._joined: list[Communicator] = []

    def group(self, name: str, rank: int, size: int) -> OrderedGroup:
        """Come to a group of this plane; ``meet`` waits for the others."""
        return self.group_at(f"{self._plane}/{name}", rank, size)

    def group_at(self, name: str, rank: int, size: int) -> OrderedGroup:
        """Come to a group of ranks of any planes."""
        self._joined.append(self._library.join(PrefixStore(name, self._store), rank, size))
        return OrderedGroup(self._library, self._joined[-1], self._options.transfer_timeout)

    def link(self, rank: int, peer: int) -> OrderedLink:
        """Come to a link; ``meet`` waits for the other one."""
        low, high = sorted((rank, peer))
        directions = [self.group(f"link/{low}/{high}/{way}", int(rank == high), 2) for way in range(2)]
        return OrderedLink(*directions) if rank == low else OrderedLink(*reversed(directions))

    def meet(self) -> None:
        """Wait until everybody has come to everything."""
        end = time.monotonic() + self._options.rebuild_timeout.total_seconds()
        changed = self._library.changed
        while not all(each.complete for each in self._joined):
            self._library.check()
            self._check()
            if time.monotonic() > end:
                raise ConnectionLost("somebody did not come")
            with changed:
                changed.wait(LOOK)

    def abort(self) -> None:
        """Give up everything."""
        for each in list(self._joined):
            each.abort()


class OrderedNetwork:
    """See Network."""

    def __init__(
        self, meeting: Meeting, view: View, server: Server, rank: ServerRank, partners: Collection[Server]
    ) -> None:
        self.view = view
        self.server = server
        self.rank = rank
        self.one_queue = meeting.one_queue
        self._meeting = meeting
        self._rank = view.rank(server)
        self.all = meeting.group("all", self._rank, len(view.servers))
        peers = view.peers(server.stage)
        self.peers = meeting.group(f"stage/{server.stage}", peers.index(server), len(peers))
        self.ranks = meeting.group_at(f"epoch/{view.epoch}/server/{server}", rank.number, rank.size)
        self._links = {each: meeting.link(self._rank, view.rank(each)) for each in partners if each != server}
        meeting.meet()

    def group(self, name: str, servers: Sequence[Server]) -> OrderedGroup:
        """See Network."""
        group = self._meeting.group(name, servers.index(self.server), len(servers))
        self._meeting.meet()
        return group

    def link(self, peer: Server) -> OrderedLink:
        """See Network."""
        if peer not in self._links:
            self._links[peer] = self._meeting.link(self._rank, self.view.rank(peer))
            self._meeting.meet()
        return self._links[peer]

    def barrier(self) -> None:
        """See Network."""
        self.all.sum(torch.zeros(1))

    def unblock(self) -> None:
        """See Network."""
        self._meeting.abort()


class OrderedPrivateLink:
    """See PrivateLink."""

    def __init__(self, meeting: Meeting, first: bool) -> None:
        self._meeting = meeting
        link = meeting.link(int(not first), int(first))
        self.send, self.receive = link.send, link.receive
        meeting.meet()

    def unblock(self) -> None:
        """See PrivateLink."""
        self._meeting.abort()


def ends_over(library: Library) -> tuple[Callable[..., Network], Callable[..., PrivateLink]]:
    """What the transport offers, as ``recycle.runtime.net.connect`` does: ``connect`` and ``connect_pair``."""

    def connect(
        store: Store,
        view: View,
        server: Server,
        options: NetworkOptions,
        rank: ServerRank = SOLE,
        check: Callable[[], None] | None = None,
        partners: Collection[Server] | None = None,
    ) -> OrderedNetwork:
        look = check or (lambda: None)
        meeting = Meeting(library, store, options, look, f"epoch/{view.epoch}/rank/{rank.number}")
        return OrderedNetwork(meeting, view, server, rank, view.servers if partners is None else partners)

    def connect_pair(
        store: Store, first: bool, options: NetworkOptions, check: Callable[[], None] = lambda: None
    ) -> PrivateLink:
        return OrderedPrivateLink(Meeting(library, store, options, check), first)

    return connect, connect_pair
