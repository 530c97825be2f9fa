"""A stand-in for NCCL. It is not NCCL: it is stricter, and runs ranks as threads.

What makes NCCL hard to build on, without exception here: a communicator carries out what it is given in order and
knows no tags; nothing moves before all its ranks have come to the same operation; who waits for somebody who is gone
waits until the communicator is aborted on this side; what one side aborts after its start goes on at the others, which
end it with anything and hear of no abort; an aborted communicator refuses all; a split needs every rank, the dead too;
and to destroy what was aborted never returns.

With one queue, all that a rank starts begins in the order of its start, whatever communicator it goes to, and not
before what was started earlier is done: so kernels begin with ``CUDA_DEVICE_MAX_CONNECTIONS=1``, which Megatron's
scripts set.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import NamedTuple

import torch

from recycle.runtime.net.nccl.bindings import Call

LOOK = 0.005
GARBAGE = 113
"""What an operation ends with that another rank has aborted."""


Calls = Sequence[Call] | None
"""What one rank gave to a communicator as one operation; None if it was aborted since."""


class Shared:
    """What the ranks of a communicator share; to be used with the library's lock held."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.come: dict[int, Device] = {}
        self.split: set[int] = set()
        self.given: dict[int, dict[int, Calls]] = {}
        self.done = 0

    def give(self, rank: int, place: int, calls: Calls) -> bool:
        """Give a rank's part of the operation at a place; the last rank's carries it out, which is said."""
        operations = self.given.setdefault(place, {})
        operations[rank] = calls
        if len(operations) < self.size:
            return False
        _carry_out([operations[each] for each in range(self.size)])
        del self.given[place]
        self.done = place + 1
        return True

    def abort(self, rank: int) -> None:
        """What this rank has begun goes on at the others, and carries nothing of it."""
        for operations in self.given.values():
            if rank in operations:
                operations[rank] = None

    def take_back(self, rank: int) -> None:
        """Nothing of this rank moves any more."""
        for operations in self.given.values():
            operations.pop(rank, None)


def _carry_out(operations: Sequence[Calls]) -> None:
    given = [(rank, call) for rank, calls in enumerate(operations) for call in calls or ()]
    if None in operations:
        for rank, call in given:
            is_root = call.peer == rank
            if {"send": False, "reduce": is_root, "broadcast": not is_root}.get(call.kind, True):
                call.tensor.fill_(GARBAGE)
        return
    # What goes from one rank to another keeps its order.
    sends = sorted(((rank, call.peer), place) for place, (rank, call) in enumerate(given) if call.kind == "send")
    receives = sorted(((call.peer, rank), place) for place, (rank, call) in enumerate(given) if call.kind == "receive")
    for (sent, source), (received, target) in zip(sends, receives, strict=True):
        assert sent == received, f"a transfer of {sent} met one of {received}"
        given[target][1].tensor.copy_(given[source][1].tensor)
    together = [[each for each in calls or () if each.kind not in ("send", "receive")] for calls in operations]
    for calls in zip(*together, strict=True):
        kind, _, peer = calls[0]
        same = all(each.kind == kind and (each.peer == peer or kind in ("sum", "maximum")) for each in calls)
        assert same, f"a communicator was given {calls}"
        stacked = torch.stack([each.tensor for each in calls])
        result = stacked.amax(0) if kind == "maximum" else stacked.sum(0)
        if kind == "broadcast":
            result = stacked[peer]
        for rank, each in enumerate(calls):
            if kind != "reduce" or rank == peer:
                each.tensor.copy_(result)


class Launched(NamedTuple):
    """An operation in a device's queue."""

    communicator: "Communicator"
    place: int
    calls: Calls


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

    def start(self, calls: Sequence[Call]) -> int:
        """Give an operation; its place in the order tells when it is done."""
        self._library.check()
        with self._library.changed:
            if self.aborted:
                raise RuntimeError("the communicator was aborted")
            self._given += 1
            place = self._given - 1
            self._library.carry_on(self._device.launch(Launched(self, place, calls)))
        return place

    def give(self, launched: Launched) -> list[Device]:
        """An operation begins; gives the devices of all ranks if it is done with it."""
        if self.aborted and not self._library.leaves_garbage:
            return []
        done = self._shared.give(self._rank, launched.place, None if self.aborted else launched.calls)
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
            if self._library.leaves_garbage:
                self._shared.abort(self._rank)
            else:
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
        leaves_garbage: whether what one side aborts ends at the others; otherwise it never does, as with gloo.
        changed: held while something changes, and told of it.
    """

    def __init__(self, one_queue: bool = False, check: Callable[[], None] = lambda: None) -> None:
        self.one_queue = one_queue
        self.leaves_garbage = True
        self.check = check
        self.changed = threading.Condition(threading.RLock())
        self._shared: weakref.WeakValueDictionary[bytes, Shared] = weakref.WeakValueDictionary()
        self._devices: dict[int, Device] = {}

    def join(self, name: bytes, rank: int, size: int) -> Communicator:
        """Come to a communicator, under the unique name that one of its ranks has made up."""
        self.check()
        with self.changed:
            shared = self._shared.setdefault(name, Shared(size))
            communicator = Communicator(self, shared, rank, self._device())
            self.changed.notify_all()
        return communicator

    def rest(self, over: Callable[[], bool]) -> None:
        """Wait for a moment, or until something is over."""
        self.check()
        with self.changed:
            self.changed.wait_for(over, LOOK)

    def apart(self) -> "Library":
        """What carries host memory beside it: with queues of its own, never one for all, and without garbage."""
        twin = copy(self)
        twin.one_queue = twin.leaves_garbage = False
        twin._devices = {}
        return twin

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
