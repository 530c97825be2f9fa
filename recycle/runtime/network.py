"""The process groups of one view.

They are plain backends over a store prefix of their own, so that a view that is left behind needs no teardown: its
groups are dropped, and those of the next epoch share nothing with them.
"""

from collections.abc import Sequence
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


class Circle:
    """Some servers that add tensors up."""

    def __init__(self, group: _Group) -> None:
        self._group = group

    def sum(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over the servers, in place; all get the same bits."""
        self._group.allreduce([tensor]).wait()


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
        self._store = PrefixStore(f"epoch/{view.epoch}/tensor/{tensor_rank}", store)
        self._timeout = timeout
        self._ranks = {each: rank for rank, each in enumerate(view.servers)}
        self._all = self._make_group("all", view.servers)
        self.all = Circle(self._all)
        self.peers = self.circle(f"stage/{server.stage}", view.peers(server.stage))

    def circle(self, name: str, servers: Sequence[Server]) -> "Circle":
        """A group of some live servers, this one among them; each of them must ask for it by the same name."""
        return Circle(self._make_group(name, servers))

    def send(self, tensor: torch.Tensor, peer: Server, tag: int) -> Work:
        """Start to send; the tensor must stay as it is until the work is done."""
        return self._all.send([tensor], self._ranks[peer], tag)

    def receive(self, tensor: torch.Tensor, peer: Server, tag: int) -> Work:
        """Start to receive into a tensor."""
        return self._all.recv([tensor], self._ranks[peer], tag)

    def barrier(self) -> None:
        """Wait for all live servers."""
        self.all.sum(torch.zeros(1))

    def _make_group(self, name: str, servers: Sequence[Server]) -> _Group:
        store = PrefixStore(name, self._store)
        return cast("_Group", ProcessGroupGloo(store, servers.index(self.server), len(servers), self._timeout))
