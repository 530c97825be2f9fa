"""The transport over NCCL, as it is, over the stand-in for NCCL's own functions."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from typing import Any
from uuid import uuid4

import torch
from torch.distributed import PrefixStore, Store

from harness.stand_in import Communicator, Library
from recycle.control.membership.view import SOLE, ServerRank, View
from recycle.job import Server
from recycle.runtime.net.nccl.bindings import Call
from recycle.runtime.net.nccl.communicators import Communicators
from recycle.runtime.net.nccl.library import NcclLibrary
from recycle.runtime.net.nccl.network import OrderedNetwork, TwofoldNetwork, plane_of
from recycle.runtime.net.network import DEFAULTS, Group, Network, NetworkOptions, PrivateLink
from recycle.runtime.net.stop_line import NO_LINE, Line

CPU = torch.device("cpu")


class StandInFunctions:
    """NCCL's functions; see Functions. What was aborted must not be touched any more, as it is no more."""

    release = 0

    def __init__(self, library: Library) -> None:
        self._library = library
        self._numbers = count(1)
        self._made: dict[int, Communicator] = {}
        self.latest: tuple[Communicator, int] | None = None

    def unique_id(self) -> bytes:
        return uuid4().bytes

    def join(self, unique_id: bytes, rank: int, size: int) -> int:
        handle = next(self._numbers)
        self._made[handle] = self._library.join(unique_id, rank, size)
        return handle

    def in_progress(self, communicator: int) -> bool:
        return not self._made[communicator].complete

    def start(self, calls: Sequence[Call], communicator: int, stream: int) -> None:
        made = self._made[communicator]
        self.latest = made, made.start(calls)

    def abort(self, communicator: int) -> None:
        self._made.pop(communicator).abort()


class StandInMark:
    """A place after an operation; see DeviceMark."""

    def __init__(self, communicator: Communicator, place: int) -> None:
        self._communicator, self._place = communicator, place

    def query(self) -> bool:
        return self._communicator.is_done(self._place)

    def has_ended(self) -> bool:
        """Whether it is done, or was given up on this side."""
        return self._communicator.is_over(self._place)


class StandInLane:
    """See DeviceLane: the stand-in has its own order, and its tensors are always there."""

    number = 0

    def __init__(self, functions: StandInFunctions, rest: Callable[[Callable[[], bool]], None]) -> None:
        self._functions = functions
        self._rest = rest

    def follow(self, _: Sequence[torch.Tensor]) -> None:
        """Nothing is behind."""

    def mark(self) -> StandInMark:
        assert self._functions.latest is not None
        return StandInMark(*self._functions.latest)

    def within(self) -> AbstractContextManager[None]:
        """There is no other order."""
        return nullcontext()

    def precede(self, mark: StandInMark, _: Sequence[torch.Tensor]) -> None:
        """What comes next is computed by this thread, which waits as a device would, and goes on after an abort."""
        while not mark.has_ended():
            self._rest(mark.has_ended)


class StandInNccl(NcclLibrary):
    """The library of a rank, over the stand-in."""

    def __init__(self, library: Library, options: NetworkOptions, check: Callable[[], None]) -> None:
        functions = StandInFunctions(library)
        super().__init__(
            CPU, options.transfer_timeout, check, functions, lambda _: StandInLane(functions, library.rest)
        )
        self.one_queue = library.one_queue
        self._library = library

    def rest(self, over: Callable[[], bool]) -> None:
        self._library.rest(over)


class WholeNetwork(OrderedNetwork):
    """A Network that carries all over communicators: the transport itself has gloo's beside it, for all servers."""

    def __init__(
        self,
        made: Communicators,
        view: View,
        server: Server,
        rank: ServerRank,
        partners: Collection[Server],
        secret: bytes,
    ) -> None:
        self.rank, self.secret = rank, secret
        self.line: Line = NO_LINE
        self.all: Group = made.group("all", view.rank(server), len(view.servers))
        super().__init__(made, view, server, rank, partners)

    def barrier(self) -> None:
        """See Network."""
        self.all.sum(torch.zeros(1))


class OrderedPrivateLink:
    """See PrivateLink."""

    def __init__(self, communicators: Communicators, first: bool) -> None:
        self._communicators = communicators
        link = communicators.link(int(not first), int(first))
        self.send, self.receive, self.apart = link.send, link.receive, link.apart
        communicators.meet()

    def unblock(self) -> None:
        """See PrivateLink."""
        self._communicators.abort()


def connects_by(make: Callable[[NetworkOptions, Callable[[], None]], NcclLibrary]) -> Callable[..., WholeNetwork]:
    """What ``recycle.runtime.net.connect.connect`` is, over libraries that are made so, of options and a check."""

    def connect(
        store: Store,
        view: View,
        server: Server,
        options: NetworkOptions = DEFAULTS,
        rank: ServerRank = SOLE,
        check: Callable[[], None] | None = None,
        partners: Collection[Server] | None = None,
        line: Callable[[Network], Line] | None = None,
    ) -> WholeNetwork:
        # As for what lies on devices: each rank stops by itself.
        del line
        look = check or (lambda: None)
        others = view.servers if partners is None else partners
        made = Communicators(make(options, look), store, options, look, plane_of(view, rank))
        return WholeNetwork(made, view, server, rank, others, options.secret)

    return connect


def is_large(tensor: torch.Tensor) -> bool:
    """Whether a tensor is taken for one that lies on a device, where all lie in host memory."""
    return tensor.numel() > 1


def connects_beside(library: Library, host: Library) -> Callable[..., TwofoldNetwork]:
    """What ``recycle.runtime.net.connect.connect`` is with NCCL, which carries what is large here.

    Args:
        library: in place of NCCL.
        host: in place of gloo beside it.
    """
    carriers = [connects_by(partial(StandInNccl, each)) for each in (host, library)]

    def connect(store: Store, *others: Any, **keywords: Any) -> TwofoldNetwork:
        first, second = (
            each(PrefixStore(str(number), store), *others, **keywords) for number, each in enumerate(carriers)
        )
        return TwofoldNetwork(first, second, is_large)

    return connect


def ends_over(library: Library) -> tuple[Callable[..., Network], Callable[..., PrivateLink]]:
    """What the transport offers, as ``recycle.runtime.net.connect`` does: ``connect`` and ``connect_pair``.

    Private links have queues of their own, as they have where they are gloo's.
    """

    def connect_pair(
        store: Store, first: bool, options: NetworkOptions, check: Callable[[], None] = lambda: None
    ) -> PrivateLink:
        made = StandInNccl(library.apart(), options, check)
        return OrderedPrivateLink(Communicators(made, store, options, check), first)

    return connects_by(partial(StandInNccl, library)), connect_pair
