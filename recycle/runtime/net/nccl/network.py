"""The network of one view over NCCL: what lies on GPUs goes over its communicators, and the rest beside them."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager

import torch

from recycle.control.membership.view import ServerRank, View
from recycle.job import Server
from recycle.runtime.net.nccl.bindings import Call
from recycle.runtime.net.nccl.communicators import Communicators, Operation, OrderedGroup, OrderedLink
from recycle.runtime.net.network import (
    Alone,
    Group,
    HostedNetwork,
    Link,
    Network,
    Reduction,
    ReductionKind,
    Share,
    Transfer,
)
from recycle.runtime.net.staged.network import Crosses, is_on_device
from recycle.runtime.net.transfer_key import TransferKey


def plane_of(view: View, rank: ServerRank) -> str:
    """Of the ranks of a number in a view: what the names of their groups begin with."""
    return f"epoch/{view.epoch}/rank/{rank.number}"


class OrderedNetwork:
    """What a Network has for what lies on devices: no group of all servers, which tell each other nothing but figures.

    Args:
        made: makes its communicators.
        view: the live servers.
        server: which of them this rank belongs to.
        rank: which of the server's.
        partners: whom this rank sends to or receives from.

    Raises:
        ViewBroken: somebody did not come.
    """

    def __init__(
        self, made: Communicators, view: View, server: Server, rank: ServerRank, partners: Collection[Server]
    ) -> None:
        self.view = view
        self.server = server
        self.one_queue = made.one_queue
        self.ends_are_right = False
        self._communicators = made
        self._named: dict[str, OrderedGroup] = {}
        self._rank = view.rank(server)
        peers = view.peers(server.stage)
        self._peers = made.group(f"stage/{server.stage}", peers.index(server), len(peers))
        self.peers: Group = self._peers
        self._turns = {each: turn for turn, each in enumerate(peers)}
        self.ranks: Group = Alone()
        if rank.size > 1:
            self.ranks = made.group_at(f"epoch/{view.epoch}/server/{server}", rank.number, rank.size)
        # All links of all ranks in one order.
        others = sorted(
            {view.rank(each) for each in partners if each != server}, key=lambda each: sorted((each, self._rank))
        )
        self._links = {view.servers[each]: made.link(self._rank, each) for each in others}
        made.meet()

    def group(self, name: str, servers: Sequence[Server], on_host: bool = False) -> OrderedGroup:
        """See Network."""
        if name not in self._named:
            self._named[name] = self._communicators.group(name, servers.index(self.server), len(servers))
            self._communicators.meet()
        return self._named[name]

    def link(self, peer: Server) -> OrderedLink:
        """See Network."""
        if peer not in self._links:
            self._links[peer] = self._communicators.link(self._rank, self.view.rank(peer))
            self._communicators.meet()
        return self._links[peer]

    def connect_shares(self, holders: Sequence[Sequence[Server]]) -> None:
        """See Network: two ranks connect with their first transfer, and a start waits for nobody once that is over."""
        shares = [Share(slice(place, place + 1), tuple(each)) for place, each in enumerate(holders)]
        tensor = torch.zeros(len(shares), device=self._communicators.device)
        for start in (self.start_shared_sum, self.start_spread):
            start(tensor, shares).wait()

    def start_shared_sum(self, tensor: torch.Tensor, shares: Sequence[Share]) -> Operation:
        """See Network: in one queue it holds up what a sum would, since all come to both of its operations in turn."""
        turns, me = self._turns, self.server
        parts = [(tensor[place], first, others) for place, (first, *others) in shares]
        self._peers.carry_out(Call("reduce", part, turns[first]) for part, first, _ in parts)
        sends = [Call("send", part, turns[each]) for part, first, others in parts if first == me for each in others]
        receives = [Call("receive", part, turns[first]) for part, first, others in parts if me in others]
        return self._peers.carry_out([*sends, *receives])

    def start_spread(self, tensor: torch.Tensor, shares: Sequence[Share]) -> Operation:
        """See Network."""
        parts = [(tensor[place], holders) for place, holders in shares if len(holders) < len(self._turns)]
        # What others hold comes to them as well, and is dropped: an abort would leave anything in its place.
        return self._peers.carry_out(
            Call("broadcast", torch.empty_like(part) if self.server in others else part, self._turns[first])
            for part, (first, *others) in parts
        )

    def unblock(self) -> None:
        """See Network."""
        self._communicators.abort()


class TwofoldLink(Link):
    """A Link whose ends agree on which tensors lie in host memory; those have an order of their own.

    Args:
        host: carries what lies there.
        near: gives what carries all others. It is asked for it when there is something to carry, because a link that a
            plan does not use carries nothing but figures.
        is_near: which those are.
    """

    def __init__(self, host: Link, near: Callable[[], Link], is_near: Crosses) -> None:
        self._host, self._near, self._is_near = host, near, is_near

    def send(self, tensor: torch.Tensor, key: TransferKey) -> Transfer:
        """See Link."""
        return self._carrier(tensor).send(tensor, key)

    def receive(self, tensor: torch.Tensor, key: TransferKey) -> Transfer:
        """See Link."""
        return self._carrier(tensor).receive(tensor, key)

    def apart(self, device: torch.device) -> AbstractContextManager[object]:
        """See Link."""
        return self._carrier(torch.empty(0, device=device)).apart(device)

    def _carrier(self, tensor: torch.Tensor) -> Link:
        return self._near() if self._is_near(tensor) else self._host


class TwofoldGroup(Group):
    """A Group whose servers agree on which tensors lie in host memory.

    Args:
        host: reduces what lies there.
        near: reduces all others.
        is_near: which those are.
    """

    def __init__(self, host: Group, near: Group, is_near: Crosses) -> None:
        self._host, self._near, self._is_near = host, near, is_near

    def start(self, kind: ReductionKind, tensor: torch.Tensor) -> Reduction:
        """See Group."""
        return (self._near if self._is_near(tensor) else self._host).start(kind, tensor)


class TwofoldNetwork(HostedNetwork):
    """A Network.

    Args:
        host: carries host memory.
        near: carries what lies on devices.
        is_near: which tensors that are.
    """

    def __init__(self, host: Network, near: OrderedNetwork, is_near: Crosses = is_on_device) -> None:
        super().__init__(host)
        self._near, self._is_near = near, is_near
        self.one_queue, self.ends_are_right = near.one_queue, near.ends_are_right
        # What all servers tell each other are figures, and those lie in host memory.
        self.all = host.all
        self.peers: Group = TwofoldGroup(host.peers, near.peers, is_near)
        self.start_shared_sum, self.start_spread = near.start_shared_sum, near.start_spread
        self.ranks: Group = TwofoldGroup(host.ranks, near.ranks, is_near)

    def group(self, name: str, servers: Sequence[Server], on_host: bool = False) -> Group:
        """See Network."""
        host = self._host.group(name, servers, on_host=True)
        return host if on_host else TwofoldGroup(host, self._near.group(name, servers), self._is_near)

    def connect_shares(self, holders: Sequence[Sequence[Server]]) -> None:
        """See Network: what a checkpoint gathers of shards goes through host memory."""
        self._host.connect_shares(holders)
        self._near.connect_shares(holders)

    def link(self, peer: Server) -> TwofoldLink:
        """See Network."""
        return TwofoldLink(self._host.link(peer), lambda: self._near.link(peer), self._is_near)

    def unblock(self) -> None:
        """See Network."""
        super().unblock()
        self._near.unblock()
