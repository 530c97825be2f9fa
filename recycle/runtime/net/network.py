"""What every transport offers: the groups and links of one view, and links apart from any view.

What it owes besides is in docs/internals/transports.md, rule by rule.

A view that is left behind needs no teardown: its network is given up and dropped, and that of the next epoch, which is
made by ``connect`` again, shares nothing with it. ``unblock`` is for another thread than the one that trains; all other
methods are for one thread only.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Literal, NamedTuple, Protocol

import torch

from recycle.control.membership.addresses import LOOPBACK
from recycle.control.membership.view import ServerRank, View
from recycle.job import Server
from recycle.runtime.net.stop_line import Line
from recycle.runtime.net.transfer_key import TransferKey

PATIENCE = timedelta(seconds=120)

TransportKind = Literal["gloo", "staged", "nccl"]
"""Gloo carries host memory; staged, it carries what lies on a device through host memory. NCCL carries what lies on
GPUs, and gloo the rest beside it."""


ReductionKind = Literal["sum", "maximum"]


class NetworkOptions(NamedTuple):
    """How a rank meets others, and how long it waits for them.

    Attributes:
        transfer_timeout: after which a silent partner is an error.
        rebuild_timeout: how long ``connect`` waits for the others, which all come there at once. For what is asked for
            later they may have state to read or to copy first, and have the time for a transfer.
        address: of this machine, where the others reach it.
        transport: what carries the tensors.
        secret: that all servers of a view have, and no stranger; empty where there is none.
    """

    transfer_timeout: timedelta = PATIENCE
    rebuild_timeout: timedelta = PATIENCE
    address: str = LOOPBACK
    transport: TransportKind = "gloo"
    secret: bytes = b""


DEFAULTS = NetworkOptions()


class Reduction(Protocol):
    """A reduction over a group that is under way."""

    def wait(self) -> None:
        """Wait for its end.

        Raises:
            ViewBroken: it will never come.
        """


class Transfer(Reduction, Protocol):
    """A tensor that is on its way over a link: waited for until it has arrived, or until its tensor is free again."""

    def precede(self) -> bool:
        """Have all that this thread starts next on the device come after it; wait for it only where no device can.

        Returns:
            Whether it was waited for. If not, what is computed with it is of use only if a later wait raises nothing.

        Raises:
            ViewBroken: it was waited for, and will never be over.
        """
        self.wait()
        return True


class Several(list[Reduction], Transfer):
    """Transfers and reductions that are waited for together, in their order; without any, it is over."""

    def wait(self) -> None:
        """See Transfer."""
        for each in self:
            each.wait()


class Share(NamedTuple):
    """A part of a tensor of one dimension that peers have.

    Attributes:
        place: in the tensor.
        holders: those that have it, or get its sum; the first one gives it to the others.
    """

    place: slice
    holders: tuple[Server, ...]


class Group(Protocol):
    """Some servers of a view that reduce tensors."""

    def sum(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over the servers, in place; all get the same bits.

        Raises:
            ViewBroken: one of them is gone.
        """
        self.start_sum(tensor).wait()

    def start_sum(self, tensor: torch.Tensor) -> Reduction:
        """Start to sum a tensor in place; it must stay as it is until that was waited for."""
        return self.start("sum", tensor)

    def maximum(self, tensor: torch.Tensor) -> None:
        """Take the greatest value of each element over the servers, in place; a NaN may get lost.

        Raises:
            ViewBroken: one of them is gone.
        """
        self.start_maximum(tensor).wait()

    def start_maximum(self, tensor: torch.Tensor) -> Reduction:
        """Start to take the maximum in place; the tensor must stay as it is until that was waited for."""
        return self.start("maximum", tensor)

    def start(self, kind: ReductionKind, tensor: torch.Tensor) -> Reduction:
        """Start a reduction of either kind."""


class Alone(Group):
    """A Group of one, which needs nobody."""

    def start(self, kind: ReductionKind, tensor: torch.Tensor) -> Reduction:
        """See Group."""
        return Several()


class Link(Protocol):
    """This rank's end of the way to another one.

    What one end sends, the other end receives in the same order and under the same keys; each direction has an order of
    its own.
    """

    def send(self, tensor: torch.Tensor, key: TransferKey) -> Transfer:
        """Start to send; the tensor must stay as it is until that was waited for."""

    def receive(self, tensor: torch.Tensor, key: TransferKey) -> Transfer:
        """Start to receive into a tensor."""

    def apart(self, device: torch.device) -> AbstractContextManager[object]:
        """Within the block, what this thread starts on a device comes after nothing that it has started elsewhere.

        What is made and received there waits for no computation. Who computes with it goes by ``precede``.

        Args:
            device: where the tensor is.
        """
        return nullcontext()


class PrivateLink(Link, Protocol):
    """A link between two processes, apart from the networks of all views. It carries host memory only."""

    def unblock(self) -> None:
        """Make every wait in it raise, here and there; for another thread than the one that waits."""


class Network(Protocol):
    """How one rank reaches the others in a view.

    Where servers have several ranks, groups and links of servers are of those with the same number as this one; only
    ``ranks`` joins those of one server.

    Attributes:
        view: the live servers.
        server: which of them this rank belongs to.
        rank: which rank of that server this is.
        secret: what all servers of the view have, and no stranger; empty where there is none.
        one_queue: whether what this rank starts runs one after the other, whatever link or group it goes over. Then
            nothing may be started that can only run after something later, here or at another rank.
        ends_are_right: whether what has ended here has ended right even if its partner gave it up meanwhile. Otherwise
            it may have ended with anything, and this rank cannot tell. So nothing is kept that was made of it before
            all servers concerned have said that they gave up nothing.
        line: where the ranks of this server stop in a list that ends early.
        all: all live servers.
        peers: the live servers of this stage.
        ranks: the ranks of this server.
    """

    view: View
    server: Server
    rank: ServerRank
    secret: bytes
    one_queue: bool
    ends_are_right: bool
    line: Line
    all: Group
    peers: Group
    ranks: Group

    def group(self, name: str, servers: Sequence[Server], on_host: bool = False) -> Group:
        """A group of some live servers, this one among them; each of them must ask for it by the same name.

        Who asks for a name again gets the same group, and meets nobody. Others may come later, by the time for a
        transfer.

        Args:
            name: of the group.
            servers: who is in it.
            on_host: whether it reduces nothing but what lies in host memory, and so needs no device's connections.

        Raises:
            ConnectionLost: one of them did not come.
        """

    def link(self, peer: Server) -> Link:
        """The link to another live server.

        Where ``connect`` was not told of it, it is made when it is first asked for, and the other end must ask too,
        within the time for a transfer.

        Raises:
            ViewBroken: the other one will not.
        """

    def connect_shares(self, holders: Sequence[Sequence[Server]]) -> None:
        """Make ready for shares of tensors where this server computes; all live servers come here.

        Args:
            holders: of each share, by its peers.

        Raises:
            ViewBroken: one of them is gone.
        """

    def start_shared_sum(self, tensor: torch.Tensor, shares: Sequence[Share]) -> Reduction:
        """Start to sum a tensor over the peers, so that all holders of a share get the same bits of its sum.

        Elsewhere, a share is of no use from then on.

        Args:
            tensor: of one dimension; it must stay as it is until that was waited for. All wait in one order.
            shares: that do not overlap, the same on all peers and in the same order. Not all peers hold all of them.
        """

    def start_spread(self, tensor: torch.Tensor, shares: Sequence[Share]) -> Transfer:
        """Start to give each share to those that do not hold it. With its holders it stays as it is.

        Args:
            tensor: see start_shared_sum.
            shares: likewise.
        """

    def barrier(self) -> None:
        """Wait for all live servers.

        Raises:
            ViewBroken: one of them is gone.
        """

    def unblock(self) -> None:
        """Give up all that is under way: every wait in this network raises, now and from now on.

        It is for another thread than the one that waits, and can be called again.
        """


class HostedNetwork:
    """What a Network has from another one, which carries host memory for it.

    Args:
        host: that one.
    """

    def __init__(self, host: Network) -> None:
        self._host = host
        self.view, self.server, self.rank, self.secret = host.view, host.server, host.rank, host.secret
        self.one_queue, self.ends_are_right, self.line = host.one_queue, host.ends_are_right, host.line

    def barrier(self) -> None:
        """See Network."""
        self._host.barrier()

    def unblock(self) -> None:
        """See Network."""
        self._host.unblock()


def confirm(network: Network) -> None:
    """Wait until all servers have got as far as this one, if what has ended here may not have ended right.

    What was transferred and reduced before is right then: none of them has given up any part of it.

    Raises:
        ViewBroken: one of them is gone.
    """
    if not network.ends_are_right:
        network.barrier()


def meet(network: Network) -> None:
    """Wait for all ranks of all live servers: first those with the same number, then those of the same server.

    Raises:
        ViewBroken: one of them is gone.
    """
    network.barrier()
    network.ranks.sum(torch.zeros(1))
