"""The network of one view whose servers compute on devices, over one that carries host memory.

Any number of servers can share a device so, because nothing waits on it for anybody else: neither is anything to be
aborted there when a view is over, nor can a kernel of one server keep another's from starting.
"""

from collections.abc import Callable, Sequence

import torch

from recycle.job import Server
from recycle.runtime.device import host_copy, room_in_host_memory
from recycle.runtime.net.network import Group, HostedNetwork, Link, Network, Reduction, ReductionKind, Transfer
from recycle.runtime.net.shares import SharesOverLinks
from recycle.runtime.net.transfer_key import TransferKey

Crosses = Callable[[torch.Tensor], bool]
"""Whether a tensor has to be carried through host memory."""


def is_on_device(tensor: torch.Tensor) -> bool:
    """Whether a tensor is anywhere but in host memory."""
    return not tensor.is_cpu


class Arriving(Transfer):
    """Something that changes a tensor on a device, under way in host memory; a transfer or a reduction.

    Args:
        inner: what is under way.
        host: what it fills.
        tensor: what gets the content.
    """

    def __init__(self, inner: Reduction, host: torch.Tensor, tensor: torch.Tensor) -> None:
        self._inner = inner
        self._host = host
        self._tensor = tensor

    def wait(self) -> None:
        """See Transfer.

        The device copies after this has returned, and before whatever this thread starts there next. Torch keeps the
        host memory for as long.
        """
        self._inner.wait()
        self._tensor.detach().copy_(self._host, non_blocking=True)


class StagedLink(Link):
    """A Link.

    Args:
        inner: carries host memory.
        crosses: which tensors are not in it.
    """

    def __init__(self, inner: Link, crosses: Crosses) -> None:
        self._inner = inner
        self._crosses = crosses

    def send(self, tensor: torch.Tensor, key: TransferKey) -> Transfer:
        """See Link. This waits for the device to have computed the tensor, and for nobody else."""
        return self._inner.send(host_copy(tensor) if self._crosses(tensor) else tensor, key)

    def receive(self, tensor: torch.Tensor, key: TransferKey) -> Transfer:
        """See Link."""
        if not self._crosses(tensor):
            return self._inner.receive(tensor, key)
        host = room_in_host_memory(tensor)
        return Arriving(self._inner.receive(host, key), host, tensor)


class StagedGroup(Group):
    """A Group.

    Args:
        inner: reduces host memory.
        crosses: which tensors are not in it.
    """

    def __init__(self, inner: Group, crosses: Crosses) -> None:
        self._inner = inner
        self._crosses = crosses

    def start(self, kind: ReductionKind, tensor: torch.Tensor) -> Reduction:
        """See Group."""
        if not self._crosses(tensor):
            return self._inner.start(kind, tensor)
        host = host_copy(tensor)
        return Arriving(self._inner.start(kind, host), host, tensor)


class StagedNetwork(HostedNetwork, SharesOverLinks):
    """A Network.

    Args:
        inner: carries host memory.
        crosses: which tensors are not in it.
    """

    def __init__(self, inner: Network, crosses: Crosses = is_on_device) -> None:
        super().__init__(inner)
        self._crosses = crosses
        self.all: Group = StagedGroup(inner.all, crosses)
        self.peers: Group = StagedGroup(inner.peers, crosses)
        self.ranks: Group = StagedGroup(inner.ranks, crosses)

    def group(self, name: str, servers: Sequence[Server], on_host: bool = False) -> StagedGroup:
        """See Network."""
        return StagedGroup(self._host.group(name, servers), self._crosses)

    def link(self, peer: Server) -> StagedLink:
        """See Network."""
        return StagedLink(self._host.link(peer), self._crosses)
