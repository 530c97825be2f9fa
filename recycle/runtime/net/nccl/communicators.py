"""Groups and links over communicators: how they are made together, waited for, and given up."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta

import torch
from torch.distributed import Store

from recycle.runtime.errors import ConnectionLost
from recycle.runtime.net.meeting_store import within
from recycle.runtime.net.nccl.bindings import Call, Kind
from recycle.runtime.net.nccl.library import DeviceMark, NcclCommunicator, NcclLibrary
from recycle.runtime.net.network import Group, Link, NetworkOptions, ReductionKind
from recycle.runtime.net.transfer_key import TransferKey
from recycle.runtime.plain_words import losing


class Operation:
    """A transfer or a reduction that was given to a communicator.

    The host waits for it by looking. It has ended right only if no partner gave it up, which this rank is not told.
    """

    def __init__(self, group: "OrderedGroup", mark: DeviceMark, tensors: Sequence[torch.Tensor]) -> None:
        self._group, self._mark, self._tensors = group, mark, tensors

    def wait(self) -> None:
        """See Transfer."""
        self._group.library.watch(self.is_over, self._group.timeout, "nobody answers")
        self._tensors = ()
        if self._group.communicator.aborted:
            raise ConnectionLost("it was aborted")

    def precede(self) -> bool:
        """See Transfer: where this side gives it up, what comes after it goes on with what its tensor holds."""
        self._group.communicator.lane.precede(self._mark, self._tensors)
        self._tensors = ()
        return False

    def is_over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self._group.communicator.is_over(self._mark)


class OrderedGroup(Group):
    """A group over one communicator.

    Attributes:
        library: that has made this.
        communicator: see above.
        timeout: after which others are no longer waited for.
    """

    def __init__(self, library: NcclLibrary, communicator: NcclCommunicator, timeout: timedelta) -> None:
        self.library, self.communicator, self.timeout = library, communicator, timeout

    def carry_out(self, calls: Iterable[Call]) -> Operation:
        """Give calls to the communicator that go on at once; all its ranks do so in the same order.

        Raises:
            ConnectionLost: it takes no more.
        """
        given = [each._replace(tensor=each.tensor.detach()) for each in calls]
        with losing():
            mark = self.communicator.start(given)
        return Operation(self, mark, [each.tensor for each in given])

    def start(self, kind: ReductionKind, tensor: torch.Tensor) -> Operation:
        """See Group."""
        return self.carry_out([Call(kind, tensor)])


class OrderedLink(Link):
    """A link over two communicators of two, one for each direction: both ends may send before they receive.

    Args:
        there: for what is sent.
        back: for what is received.
        peer: the rank of the other end in both.
    """

    def __init__(self, there: OrderedGroup, back: OrderedGroup, peer: int) -> None:
        self._there, self._back, self._peer = there, back, peer

    def send(self, tensor: torch.Tensor, _: TransferKey) -> Operation:
        """See Link."""
        return self._there.carry_out([Call("send", tensor, self._peer)])

    def receive(self, tensor: torch.Tensor, _: TransferKey) -> Operation:
        """See Link."""
        return self._back.carry_out([Call("receive", tensor, self._peer)])

    def apart(self, device: torch.device) -> AbstractContextManager[object]:
        """See Link."""
        return self._back.communicator.lane.within()


class Communicators:
    """Makes groups and links of one rank, and gives them all up.

    Every rank asks for its own in an order that all agree on: first all that ``meet`` then waits for, and carries
    something over, in the same order. So no two ranks wait for each other, in one queue or in many.

    Args:
        library: makes communicators.
        store: where ranks find each other.
        options: how they meet.
        check: raises when this is over; asked while others are waited for.
        plane: what the names of its groups begin with.

    Attributes:
        one_queue: whether what this rank starts runs one after the other.
        device: where the tensors are that are carried.
    """

    def __init__(
        self, library: NcclLibrary, store: Store, options: NetworkOptions, check: Callable[[], None], plane: str = ""
    ) -> None:
        self.one_queue = library.one_queue
        self.device = library.device
        self._library = library
        self._plane = plane
        self._store = store
        self._options = options
        self._check = check
        self._patience = options.rebuild_timeout
        self._joined: list[NcclCommunicator] = []
        self._cold: list[tuple[OrderedGroup, Call]] = []

    def group(self, name: str, rank: int, size: int) -> OrderedGroup:
        """Come to a group of this plane; ``meet`` waits for the others."""
        return self.group_at(f"{self._plane}/{name}", rank, size)

    def group_at(self, name: str, rank: int, size: int, first: Kind = "sum") -> OrderedGroup:
        """Come to a group of ranks of any planes.

        Args:
            name: which.
            rank: of this one in it.
            size: how many there are.
            first: what is carried out in it first.

        Raises:
            ViewBroken: it cannot be made. Then all is given up.
        """
        try:
            with losing():
                self._joined.append(self._library.join(within(name, self._store), rank, size))
        except Exception:
            # What was made before waits for others, who may never come.
            self.abort()
            raise
        group = OrderedGroup(self._library, self._joined[-1], self._options.transfer_timeout)
        self._cold.append((group, Call(first, torch.zeros(1, device=self.device), 1 - rank)))
        return group

    def link(self, rank: int, peer: int) -> OrderedLink:
        """Come to a link; ``meet`` waits for the other one."""
        low, high = sorted((rank, peer))
        ways: tuple[Kind, Kind] = ("send", "receive") if rank == low else ("receive", "send")
        both = [
            self.group_at(f"{self._plane}/link/{low}/{high}/{number}", int(rank == high), 2, way)
            for number, way in enumerate(ways)
        ]
        there, back = both if rank == low else both[::-1]
        return OrderedLink(there, back, int(rank == low))

    def meet(self) -> None:
        """Wait until everybody has come to everything, and carry something over it: the first time takes longest.

        All come to the first one at once. Before a later one, others may have state to read or to copy.

        Raises:
            ViewBroken: somebody did not come. Then all is given up.
        """
        try:
            self._watch(lambda: all(each.complete for each in self._joined))
            for group, call in self._cold:
                self._watch(group.carry_out([call]).is_over)
            self._cold.clear()
            self._patience = self._options.transfer_timeout
        except Exception:
            self.abort()
            raise

    def abort(self) -> None:
        """Give up everything."""
        self._library.abort(list(self._joined))

    def _watch(self, over: Callable[[], bool]) -> None:
        self._library.watch(over, self._patience, "somebody did not come", self._check)
