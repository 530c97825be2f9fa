"""The network of one view over NCCL: what lies on GPUs goes over its communicators, and the rest beside them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch

from recycle.job import Server
from recycle.runtime.net.nccl.device_network import OrderedNetwork
from recycle.runtime.net.network import Group, HostedNetwork, Link, Network, Reduction, ReductionKind, Transfer
from recycle.runtime.net.staged.crossing import Crosses, is_on_device
from recycle.runtime.net.transfer_key import TransferKey


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
        self.connect_shares = near.connect_shares
        self.start_shared_sum, self.start_spread = near.start_shared_sum, near.start_spread
        self.ranks: Group = TwofoldGroup(host.ranks, near.ranks, is_near)

    def group(self, name: str, servers: Sequence[Server], on_host: bool = False) -> Group:
        """See Network."""
        host = self._host.group(name, servers, on_host=True)
        return host if on_host else TwofoldGroup(host, self._near.group(name, servers), self._is_near)

    def link(self, peer: Server) -> TwofoldLink:
        """See Network."""
        return TwofoldLink(self._host.link(peer), lambda: self._near.link(peer), self._is_near)

    def unblock(self) -> None:
        """See Network."""
        super().unblock()
        self._near.unblock()
