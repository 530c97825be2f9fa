"""The process groups of one view.

They are plain backends over a store prefix of their own, so that a view that is left behind needs no teardown: its
groups are dropped, and those of the next epoch share nothing with them.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import AllreduceOptions, PrefixStore, ProcessGroupGloo, ReduceOp, Store, Work

from recycle.control.tcp_store import LOOPBACK
from recycle.control.view import View
from recycle.job import Server
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.net.gloo.sockets import Connections, open_sockets, unblock
from recycle.runtime.net.gloo.transfers import Waits

PATIENCE = timedelta(seconds=120)
SLICE = timedelta(milliseconds=50)
EXPIRED = "Operation timed out"


class Transfer:
    """Something that is under way between servers.

    Args:
        work: torch's own object.
        timeout: after which a silent partner is an error.
        waits: waits for it, and may have to give it up.
    """

    def __init__(self, work: Work, timeout: timedelta, waits: Waits) -> None:
        self._work = work
        self._timeout = timeout
        self._waits = waits

    def wait(self) -> None:
        """Wait for its end.

        Raises:
            ViewBroken: it will never come.
        """
        try:
            self._waits.wait(self._work, self._timeout)
        except RuntimeError as error:
            raise _lost(error) from error


class Reduction:
    """A sum, or another reduction, over servers that is under way.

    A sum in which somebody is gone is not always given up by gloo before its time-out, even where all its connections
    are closed. So the wait for it is interrupted now and then, to see whether anybody has raised the alarm.

    Args:
        work: torch's own object.
        check: raises when the sum will not come to its end.
    """

    def __init__(self, work: Work, check: Callable[[], None]) -> None:
        self._work = work
        self._check = check

    def wait(self) -> None:
        """Wait for its end.

        Raises:
            ViewBroken: it will never come.
        """
        while True:
            try:
                self._work.wait(SLICE)
                return
            except RuntimeError as error:
                if EXPIRED not in str(error):
                    raise _lost(error) from error
            self._check()


class Group:
    """Some servers that add tensors up.

    Args:
        group: of gloo.
        check: raises when a sum will not come to its end.
    """

    def __init__(self, group: Any, check: Callable[[], None]) -> None:
        self._group = group
        self._check = check

    def sum(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over the servers, in place; all get the same bits.

        Raises:
            ViewBroken: somebody in it is gone.
        """
        self.start_sum(tensor).wait()

    def start_sum(self, tensor: torch.Tensor) -> Reduction:
        """Start to sum a tensor in place; it must stay as it is until that was waited for."""
        return Reduction(_begin(lambda: self._group.allreduce([tensor])), self._check)

    def maximum(self, tensor: torch.Tensor) -> None:
        """Take the greatest value of each element over the servers, in place; what is no number may get lost.

        Raises:
            ViewBroken: somebody in it is gone.
        """
        self.start_maximum(tensor).wait()

    def start_maximum(self, tensor: torch.Tensor) -> Reduction:
        """Start to do so; the tensor must stay as it is until that was waited for."""
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.MAX)
        return Reduction(_begin(lambda: self._group.allreduce([tensor], options)), self._check)


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
        check: raises when this view is over; it is asked while something is waited for. None where views never end.

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
        check: Callable[[], None] | None = None,
    ) -> None:
        self.view = view
        self.server = server
        self._store = PrefixStore(f"epoch/{view.epoch}/tensor/{tensor_rank}", store)
        self._transfer = transfer
        self._rebuild = rebuild
        self._ranks = {each: rank for rank, each in enumerate(view.servers)}
        self._keep = frozenset(keep)
        gloo: Any = ProcessGroupGloo
        self._device = gloo.create_device(hostname=address)
        self._before = self._sockets = open_sockets()
        self._unblocked = False
        self._groups: list[tuple[Any, Connections]] = []
        self._all = self._make_group("all", view.servers)
        self._check = check or _nothing
        self._waits = Waits()
        self.all = Group(self._all, self._check)
        self.peers = self.group(f"stage/{server.stage}", view.peers(server.stage))

    def group(self, name: str, servers: Sequence[Server]) -> "Group":
        """A group of some live servers, this one among them; each of them must ask for it by the same name.

        Raises:
            ConnectionLost: somebody did not come.
        """
        return Group(self._make_group(name, servers), self._check)

    def send(self, tensor: torch.Tensor, peer: Server, tag: int) -> Transfer:
        """Start to send; the tensor must stay as it is until that was waited for."""
        work = _begin(lambda: self._all.send([tensor], self._ranks[peer], tag))
        return Transfer(work, self._transfer, self._waits)

    def receive(self, tensor: torch.Tensor, peer: Server, tag: int) -> Transfer:
        """Start to receive into a tensor."""
        work = _begin(lambda: self._all.recv([tensor], self._ranks[peer], tag))
        return Transfer(work, self._transfer, self._waits)

    def barrier(self) -> None:
        """Wait for all live servers.

        Raises:
            ViewBroken: one of them is gone.
        """
        self.all.sum(torch.zeros(1))

    def unblock(self) -> None:
        """Make every wait in these groups raise; for another thread than the one that waits.

        If it has to be done again, a connection came up after its group: then all go that were made since.
        """
        for group, connections in list(self._groups):
            unblock(group, connections)
        if self._unblocked:
            Connections(self._before, open_sockets(), self._keep).cut()
        self._waits.give_up()
        self._unblocked = True

    def _make_group(self, name: str, servers: Sequence[Server]) -> Any:
        store = PrefixStore(name, self._store)
        place = servers.index(self.server)
        group = _make_group(store, place, len(servers), self._device, self._rebuild, self._transfer)
        sockets = open_sockets()
        self._groups.append((group, Connections(self._sockets, sockets, self._keep)))
        self._sockets = sockets
        return group


class Link:
    """A Wire between two processes, apart from the groups of any view. One of them is first, the other one is not.

    No other thread of the process may make groups meanwhile.

    Args:
        store: where they find each other; nobody else uses it.
        first: whether this process is the first.
        transfer: after which a silent partner is an error.
        rebuild: how long to wait for the other one here.
        address: of this machine, where the other one reaches it.
        keep: ports of connections that other threads may open meanwhile.

    Raises:
        ConnectionLost: the other one did not come.
    """

    def __init__(
        self,
        store: Store,
        first: bool,
        transfer: timedelta,
        rebuild: timedelta,
        address: str,
        keep: Collection[int],
    ) -> None:
        self._peer = int(first)
        self._transfer = transfer
        gloo: Any = ProcessGroupGloo
        device = gloo.create_device(hostname=address)
        before = open_sockets()
        self._group = _make_group(store, 1 - self._peer, 2, device, rebuild, transfer)
        self._connections = Connections(before, open_sockets(), frozenset(keep))
        self._waits = Waits()

    def send(self, tensor: torch.Tensor) -> Transfer:
        """See Wire."""
        return Transfer(_begin(lambda: self._group.send([tensor], self._peer, 0)), self._transfer, self._waits)

    def receive(self, tensor: torch.Tensor) -> Transfer:
        """See Wire."""
        return Transfer(_begin(lambda: self._group.recv([tensor], self._peer, 0)), self._transfer, self._waits)

    def unblock(self) -> None:
        """Make every wait in it raise, here and there; for another thread than the one that waits."""
        unblock(self._group, self._connections)
        self._waits.give_up()


def _nothing() -> None:
    """What is checked where views never end."""


def _make_group(store: Store, rank: int, size: int, device: Any, rebuild: timedelta, transfer: timedelta) -> Any:
    gloo: Any = ProcessGroupGloo  # the stubs leave most of it out
    options = gloo._Options()  # noqa: SLF001 - the only way to choose the address
    options._devices = [device]  # noqa: SLF001
    options._timeout = rebuild  # noqa: SLF001
    try:
        group = gloo(store, rank, size, options)
    except RuntimeError as error:
        raise _lost(error) from error
    group._set_default_timeout(transfer)  # noqa: SLF001 - of sums; transfers have the constructor's
    return group


def _begin(start: Any) -> Work:
    try:
        work: Work = start()
    except RuntimeError as error:
        raise _lost(error) from error
    return work


def _lost(error: RuntimeError) -> ConnectionLost:
    return ConnectionLost(str(error).strip().split("\n")[0])
