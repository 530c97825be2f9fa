"""The process groups of one view.

They are plain backends over a store prefix of their own, so that a view that is left behind needs no teardown: its
groups are dropped, and those of the next epoch share nothing with them.
"""

from datetime import timedelta
from typing import Protocol, cast

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, Store, Work

from recycle.job import Server
from recycle.runtime.view import View


class _Group(Protocol):
    """The part of a torch backend that is used here; its type stubs leave it out."""

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int, /) -> Work: ...
    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int, /) -> Work: ...
    def allreduce(self, tensors: list[torch.Tensor], /) -> Work: ...


class Network:
    """How one rank reaches the others in a view.

    The tensor-parallel ranks of a server each talk to those of the same place in other servers, so they form planes
    that never meet here.

    Args:
        store: where the ranks find each other.
        view: the live servers.
        server: which of them this rank belongs to.
        tensor_rank: its place in the server.
        timeout: after which a silent partner is an error.
    """

    def __init__(
        self,
        store: Store,
        view: View,
        server: Server,
        tensor_rank: int = 0,
        timeout: timedelta = timedelta(seconds=120),
    ) -> None:
        self.view = view
        self.server = server
        prefix = f"epoch/{view.epoch}/tensor/{tensor_rank}"
        peers = view.peers(server.stage)
        self._ranks = {each: rank for rank, each in enumerate(view.servers)}
        self._all = _group(PrefixStore(f"{prefix}/all", store), view.rank(server), len(view.servers), timeout)
        self._peers = _group(
            PrefixStore(f"{prefix}/stage/{server.stage}", store), peers.index(server), len(peers), timeout
        )

    def send(self, tensor: torch.Tensor, peer: Server, tag: int) -> Work:
        """Start to send; the tensor must stay as it is until the work is done."""
        return self._all.send([tensor], self._ranks[peer], tag)

    def receive(self, tensor: torch.Tensor, peer: Server, tag: int) -> Work:
        """Start to receive into a tensor."""
        return self._all.recv([tensor], self._ranks[peer], tag)

    def sum_over_all(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over all live servers, in place."""
        self._all.allreduce([tensor]).wait()

    def sum_over_peers(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over the live servers of this stage, in place; all get the same bits."""
        self._peers.allreduce([tensor]).wait()

    def barrier(self) -> None:
        """Wait for all live servers."""
        self.sum_over_all(torch.zeros(1))


def _group(store: Store, rank: int, size: int, timeout: timedelta) -> _Group:
    return cast("_Group", ProcessGroupGloo(store, rank, size, timeout))
