"""A stand-in for NCCL, and a transport over it. It is not NCCL: it is stricter, and runs ranks as threads.

What makes NCCL hard to build on, without exception here: a communicator carries out what it is given in order and
knows no tags; nothing moves before all its ranks have come to the same operation; who waits for somebody who is gone
waits until the communicator is aborted on this side, and no abort is heard on the other; an aborted communicator
refuses all; a split needs every rank, the dead too; and to destroy what was aborted never returns.

With one queue, all that a rank starts begins in the order of its start, whatever communicator it goes to, and not
before what was started earlier is done: so kernels begin with ``CUDA_DEVICE_MAX_CONNECTIONS=1``, which Megatron's
scripts set.

So the transport has a communicator for each direction of a link, because both ends may send before they receive; makes
all communicators of a view anew; and gives up by abort, never by destroy.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import torch
from torch.distributed import PrefixStore, Store

from recycle.control.view import SOLE, ServerRank, View
from recycle.job import Server
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.net.network import Network, NetworkOptions, PrivateLink

LOOK = 0.005


class Operation(NamedTuple):
    """What one rank gave to a communicator."""

    kind: str
    tensor: torch.Tensor


class Shared:
    """What the ranks of a communicator share; to be used with the library's lock held."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.come: dict[int, Device] = {}
        self.split: set[int] = set()
        self.given: dict[int, dict[int, Operation]] = {}
        self.done = 0

    def give(self, rank: int, place: int, operation: Operation) -> bool:
        """Give a rank's operation of a place in the order; the last rank's carries it out, which is said."""
        operations = self.given.setdefault(place, {})
        operations[rank] = operation
        if len(operations) < self.size:
            return False
        _carry_out([operations[each] for each in range(self.size)])
        del self.given[place]
        self.done = place + 1
        return True

    def take_back(self, rank: int) -> None:
        """Nothing of this rank moves any more."""
        for operations in self.given.values():
            operations.pop(rank, None)


def _carry_out(operations: Sequence[Operation]) -> None:
    kinds, tensors = [each.kind for each in operations], [each.tensor for each in operations]
    if "send" in kinds:
        assert sorted(kinds) == ["receive", "send"], f"a communicator was given {kinds}"
        tensors[kinds.index("receive")].copy_(tensors[kinds.index("send")])
        return
    assert len(set(kinds)) == 1, f"a communicator was given {kinds}"
    stacked = torch.stack(tensors)
    result = stacked.sum(0) if kinds[0] == "sum" else stacked.amax(0)
    for each in tensors:
        each.copy_(result)


class Launched(NamedTuple):
    """An operation in a device's queue."""

    communicator: "Communicator"
    place: int
    operation: Operation


class Device:
    """Where the operations of one rank run: at once, or one after the other.

    Args:
        one_queue: whether they wait for each other.
    """

    def __init__(self, one_queue: bool) -> None:
        self.communicators: weakref.WeakSet[Communicator] = weakref.WeakSet()
        self._one_queue = one_queue
        self._queue: deque[Launched] = deque()
        self._running: Launched | None = None

    def launch(self, launched: Launched) -> list["Device"]:
        """Start an operation; gives the devices for which another one is done with it."""
        if not self._one_queue:
            return launched.communicator.give(launched)
        self._queue.append(launched)
        return self.advance()

    def advance(self) -> list["Device"]:
        """Start what can be; gives the devices for which something is done with it."""
        touched = []
        while self._running is None or self._running.communicator.is_over(self._running.place):
            if not self._queue:
                self._running = None
                break
            self._running = self._queue.popleft()
            if not self._running.communicator.aborted:
                touched += self._running.communicator.give(self._running)
        return touched


class Communicator:
    """One rank's end."""

    def __init__(self, library: "Library", shared: Shared, rank: int, device: Device) -> None:
        self.aborted = False
        self._library = library
        self._shared = shared
        self._rank = rank
        self._device = device
        self._given = 0
        shared.come[rank] = device
        device.communicators.add(self)

    @property
    def complete(self) -> bool:
        """Whether all ranks have come."""
        return len(self._shared.come) == self._shared.size

    def start(self, kind: str, tensor: torch.Tensor) -> int:
        """Give an operation; its place in the order tells when it is done."""
        with self._library.changed:
            if self.aborted:
                raise RuntimeError("the communicator was aborted")
            self._given += 1
            place = self._given - 1
            self._library.carry_on(self._device.launch(Launched(self, place, Operation(kind, tensor))))
        return place

    def give(self, launched: Launched) -> list[Device]:
        """An operation begins; gives the devices of all ranks if it is done with it."""
        done = self._shared.give(self._rank, launched.place, launched.operation)
        return list(self._shared.come.values()) if done else []

    def is_done(self, place: int) -> bool:
        """Whether an operation is done; it never is if somebody in it is gone."""
        return place < self._shared.done

    def is_over(self, place: int) -> bool:
        """Whether an operation is done, or never will be on this side."""
        return self.aborted or self.is_done(place)

    def abort(self) -> None:
        """On this side; nobody else is told."""
        with self._library.changed:
            self.aborted = True
            self._shared.take_back(self._rank)
            self._library.carry_on([self._device])

    def vanish(self) -> None:
        """The process of this rank is gone, and what it gave with it."""
        self._shared.take_back(self._rank)

    def destroy(self) -> None:
        """Never returns after an abort."""
        while self.aborted:
            time.sleep(LOOK)

    def divide(self) -> None:
        """A split: returns when all ranks have asked for it, or never."""
        self._shared.split.add(self._rank)
        while len(self._shared.split) < self._shared.size:
            time.sleep(LOOK)


class Library:
    """The stand-in, in one process, whose threads are ranks.

    Args:
        one_queue: whether what a rank starts runs one after the other.
        check: called whenever a rank comes here; what it raises ends that.

    Attributes:
        one_queue: as above.
        changed: held while something changes, and told of it.
    """

    def __init__(self, one_queue: bool = False, check: Callable[[], None] = lambda: None) -> None:
        self.one_queue = one_queue
        self.check = check
        self.changed = threading.Condition(threading.RLock())
        self._shared: weakref.WeakValueDictionary[bytes, Shared] = weakref.WeakValueDictionary()
        self._devices: dict[int, Device] = {}

    def join(self, store: Store, rank: int, size: int) -> Communicator:
        """Come to a communicator, under the unique name that the store has for it."""
        self.check()
        name = store.compare_set("name", "", uuid4().hex)
        with self.changed:
            shared = self._shared.setdefault(name, Shared(size))
            communicator = Communicator(self, shared, rank, self._device())
            self.changed.notify_all()
        return communicator

    def count(self) -> int:
        """How many communicators this thread holds."""
        return len(self._device().communicators)

    def carry_on(self, devices: Sequence[Device]) -> None:
        """Something is done on some devices, or will never be: start what has waited for it."""
        due = deque(devices)
        while due:
            due.extend(due.popleft().advance())
        self.changed.notify_all()

    def die(self) -> None:
        """The process of this thread's rank is gone: nothing of it runs, and nobody is told."""
        with self.changed:
            for each in self._devices.pop(threading.get_ident(), Device(False)).communicators:
                each.vanish()

    def _device(self) -> Device:
        return self._devices.setdefault(threading.get_ident(), Device(self.one_queue))


class UnderWay:
    """A transfer or a reduction."""

    def __init__(self, library: Library, communicator: Communicator, place: int, timeout: timedelta) -> None:
        self._library = library
        self._communicator = communicator
        self._place = place
        self._timeout = timeout.total_seconds()

    def wait(self) -> None:
        """See Transfer."""
        end = time.monotonic() + self._timeout
        communicator, changed = self._communicator, self._library.changed
        while not communicator.is_over(self._place):
            self._library.check()
            if time.monotonic() > end:
                raise ConnectionLost("nobody answers")
            with changed:
                changed.wait_for(lambda: communicator.is_over(self._place), LOOK)
        if communicator.aborted:
            raise ConnectionLost("it was aborted")


class OrderedGroup:
    """A group over one communicator."""

    def __init__(self, library: Library, communicator: Communicator, timeout: timedelta) -> None:
        self._library = library
        self._communicator = communicator
        self._timeout = timeout

    def start(self, kind: str, tensor: torch.Tensor) -> UnderWay:
        """Give an operation to the communicator."""
        self._library.check()
        try:
            place = self._communicator.start(kind, tensor)
            return UnderWay(self._library, self._communicator, place, self._timeout)
        except RuntimeError as error:
            raise ConnectionLost(str(error)) from error

    def start_sum(self, tensor: torch.Tensor) -> UnderWay:
        """See Group."""
        return self.start("sum", tensor)

    def start_maximum(self, tensor: torch.Tensor) -> UnderWay:
        """See Group."""
        return self.start("maximum", tensor)

    def sum(self, tensor: torch.Tensor) -> None:
        """See Group."""
        self.start_sum(tensor).wait()

    def maximum(self, tensor: torch.Tensor) -> None:
        """See Group."""
        self.start_maximum(tensor).wait()


class OrderedLink:
    """A link over two communicators of two, one for each direction."""

    def __init__(self, there: OrderedGroup, back: OrderedGroup) -> None:
        self._there, self._back = there, back

    def send(self, tensor: torch.Tensor, _: Any) -> UnderWay:
        """See Link."""
        return self._there.start("send", tensor)

    def receive(self, tensor: torch.Tensor, _: Any) -> UnderWay:
        """See Link."""
        return self._back.start("receive", tensor)


class Meeting:
    """Makes groups and links, and gives them up."""

    def __init__(
        self, library: Library, store: Store, options: NetworkOptions, check: Callable[[], None], plane: str = ""
    ) -> None:
        self.one_queue = library.one_queue
        self._library = library
        self._plane = plane
        self._store = store
        self._options = options
        self._check = check
        self._joined: list[Communicator] = []

    def group(self, name: str, rank: int, size: int) -> OrderedGroup:
        """Come to a group of this plane; ``meet`` waits for the others."""
        return self.group_at(f"{self._plane}/{name}", rank, size)

    def group_at(self, name: str, rank: int, size: int) -> OrderedGroup:
        """Come to a group of ranks of any planes."""
        self._joined.append(self._library.join(PrefixStore(name, self._store), rank, size))
        return OrderedGroup(self._library, self._joined[-1], self._options.transfer_timeout)

    def link(self, rank: int, peer: int) -> OrderedLink:
        """Come to a link; ``meet`` waits for the other one."""
        low, high = sorted((rank, peer))
        directions = [self.group(f"link/{low}/{high}/{way}", int(rank == high), 2) for way in range(2)]
        return OrderedLink(*directions) if rank == low else OrderedLink(*reversed(directions))

    def meet(self) -> None:
        """Wait until everybody has come to everything."""
        end = time.monotonic() + self._options.rebuild_timeout.total_seconds()
        changed = self._library.changed
        while not all(each.complete for each in self._joined):
            self._library.check()
            self._check()
            if time.monotonic() > end:
                raise ConnectionLost("somebody did not come")
            with changed:
                changed.wait(LOOK)

    def abort(self) -> None:
        """Give up everything."""
        for each in list(self._joined):
            each.abort()


class OrderedNetwork:
    """See Network."""

    def __init__(
        self, meeting: Meeting, view: View, server: Server, rank: ServerRank, partners: Collection[Server]
    ) -> None:
        self.view = view
        self.server = server
        self.rank = rank
        self.one_queue = meeting.one_queue
        self._meeting = meeting
        self._rank = view.rank(server)
        self.all = meeting.group("all", self._rank, len(view.servers))
        peers = view.peers(server.stage)
        self.peers = meeting.group(f"stage/{server.stage}", peers.index(server), len(peers))
        self.ranks = meeting.group_at(f"epoch/{view.epoch}/server/{server}", rank.number, rank.size)
        self._links = {each: meeting.link(self._rank, view.rank(each)) for each in partners if each != server}
        meeting.meet()

    def group(self, name: str, servers: Sequence[Server]) -> OrderedGroup:
        """See Network."""
        group = self._meeting.group(name, servers.index(self.server), len(servers))
        self._meeting.meet()
        return group

    def link(self, peer: Server) -> OrderedLink:
        """See Network."""
        if peer not in self._links:
            self._links[peer] = self._meeting.link(self._rank, self.view.rank(peer))
            self._meeting.meet()
        return self._links[peer]

    def barrier(self) -> None:
        """See Network."""
        self.all.sum(torch.zeros(1))

    def unblock(self) -> None:
        """See Network."""
        self._meeting.abort()


class OrderedPrivateLink:
    """See PrivateLink."""

    def __init__(self, meeting: Meeting, first: bool) -> None:
        self._meeting = meeting
        link = meeting.link(int(not first), int(first))
        self.send, self.receive = link.send, link.receive
        meeting.meet()

    def unblock(self) -> None:
        """See PrivateLink."""
        self._meeting.abort()


def ends_over(library: Library) -> tuple[Callable[..., Network], Callable[..., PrivateLink]]:
    """What the transport offers, as ``recycle.runtime.net.connect`` does: ``connect`` and ``connect_pair``."""

    def connect(
        store: Store,
        view: View,
        server: Server,
        options: NetworkOptions,
        rank: ServerRank = SOLE,
        check: Callable[[], None] | None = None,
        partners: Collection[Server] | None = None,
    ) -> OrderedNetwork:
        look = check or (lambda: None)
        meeting = Meeting(library, store, options, look, f"epoch/{view.epoch}/rank/{rank.number}")
        return OrderedNetwork(meeting, view, server, rank, view.servers if partners is None else partners)

    def connect_pair(
        store: Store, first: bool, options: NetworkOptions, check: Callable[[], None] = lambda: None
    ) -> PrivateLink:
        return OrderedPrivateLink(Meeting(library, store, options, check), first)

    return connect, connect_pair
