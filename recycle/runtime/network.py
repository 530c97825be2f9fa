"""The process groups of one view.

They are plain backends over a store prefix of their own, so that a view that is left behind needs no teardown: its
groups are dropped, and those of the next epoch share nothing with them.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import AllreduceOptions, PrefixStore, ProcessGroupGloo, ReduceOp, Store, Work

from recycle.control.view import View
from recycle.job import Server
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.unblock import Connections, open_sockets, unblock

LOOPBACK = "127.0.0.1"
PATIENCE = timedelta(seconds=120)


class Transfer:
    """Something that is under way between servers.

    Args:
        work: torch's own object.
        timeout: after which a silent partner is an error; None where the group knows it.
    """

    def __init__(self, work: Work, timeout: timedelta | None = None) -> None:
        self._work = work
        self._timeout = timeout

    def wait(self) -> None:
        """Wait for its end.

        Raises:
            ConnectionLost: it will never come.
        """
        try:
            if self._timeout is None:
                self._work.wait()
            else:
                self._work.wait(self._timeout)
        except RuntimeError as error:
            raise _lost(error) from error


class Circle:
    """Some servers that add tensors up."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def sum(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over the servers, in place; all get the same bits.

        Raises:
            ConnectionLost: somebody in it is gone.
        """
        self.start_sum(tensor).wait()

    def start_sum(self, tensor: torch.Tensor) -> Transfer:
        """Start to sum a tensor in place; it must stay as it is until that was waited for."""
        return Transfer(_begin(lambda: self._group.allreduce([tensor])))

    def maximum(self, tensor: torch.Tensor) -> None:
        """Take the greatest value of each element over the servers, in place; what is no number may get lost.

        Raises:
            ConnectionLost: somebody in it is gone.
        """
        self.start_maximum(tensor).wait()

    def start_maximum(self, tensor: torch.Tensor) -> Transfer:
        """Start to do so; the tensor must stay as it is until that was waited for."""
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.MAX)
        return Transfer(_begin(lambda: self._group.allreduce([tensor], options)))


class Network:
    """How one rank reaches the others in a view.

    The tensor-parallel ranks of a server each talk to those of the same place in other servers, so they form planes
    that never meet here.

    Args:
        store: where the ranks find each other.
        view: the live servers.
        server: which of them this rank belongs to.
        tensor_rank: its place in the server.
        transfer: after which a silent partner is an error.
        rebuild: how long to wait for the others here; they may die while this is made.
        address: of this machine, where the others reach it.
        keep: ports of connections that other threads may open meanwhile.

    Raises:
        ConnectionLost: somebody did not come.
    """

    def __init__(
        self,
        store: Store,
        view: View,
        server: Server,
        tensor_rank: int = 0,
        transfer: timedelta = PATIENCE,
        rebuild: timedelta = PATIENCE,
        address: str = LOOPBACK,
        keep: Collection[int] = (),
    ) -> None:
        self.view = view
        self.server = server
        self._store = PrefixStore(f"epoch/{view.epoch}/tensor/{tensor_rank}", store)
        self._transfer = transfer
        self._rebuild = rebuild
        self._address = address
        self._ranks = {each: rank for rank, each in enumerate(view.servers)}
        self._keep = frozenset(keep)
        self._groups: list[tuple[Any, Connections]] = []
        self._all = self._make_group("all", view.servers)
        self.all = Circle(self._all)
        self.peers = self.circle(f"stage/{server.stage}", view.peers(server.stage))

    def circle(self, name: str, servers: Sequence[Server]) -> "Circle":
        """A group of some live servers, this one among them; each of them must ask for it by the same name.

        Raises:
            ConnectionLost: somebody did not come.
        """
        return Circle(self._make_group(name, servers))

    def send(self, tensor: torch.Tensor, peer: Server, tag: int) -> Transfer:
        """Start to send; the tensor must stay as it is until that was waited for."""
        return Transfer(_begin(lambda: self._all.send([tensor], self._ranks[peer], tag)), self._transfer)

    def receive(self, tensor: torch.Tensor, peer: Server, tag: int) -> Transfer:
        """Start to receive into a tensor."""
        return Transfer(_begin(lambda: self._all.recv([tensor], self._ranks[peer], tag)), self._transfer)

    def barrier(self) -> None:
        """Wait for all live servers.

        Raises:
            ConnectionLost: one of them is gone.
        """
        self.all.sum(torch.zeros(1))

    def unblock(self) -> None:
        """Make every wait in these groups raise; for another thread than the one that waits."""
        for group, connections in list(self._groups):
            unblock(group, connections)

    def _make_group(self, name: str, servers: Sequence[Server]) -> Any:
        gloo: Any = ProcessGroupGloo  # the stubs leave most of it out
        options = gloo._Options()  # noqa: SLF001 - the only way to choose the address
        options._devices = [gloo.create_device(hostname=self._address)]  # noqa: SLF001
        options._timeout = self._rebuild  # noqa: SLF001
        store = PrefixStore(name, self._store)
        before = open_sockets()
        try:
            group = gloo(store, servers.index(self.server), len(servers), options)
        except RuntimeError as error:
            raise _lost(error) from error
        group._set_default_timeout(self._transfer)  # noqa: SLF001 - of sums; transfers have the constructor's
        self._groups.append((group, Connections(before, self._keep)))
        return group


def _begin(start: Any) -> Work:
    try:
        work: Work = start()
    except RuntimeError as error:
        raise _lost(error) from error
    return work


def _lost(error: RuntimeError) -> ConnectionLost:
    return ConnectionLost(str(error).strip().split("\n")[0])
