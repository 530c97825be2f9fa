"""Communicators of NCCL that never block: made eagerly, looked at, and given up from any thread."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed import Store

from recycle.runtime.net.nccl.bindings import Functions, Handle, Nccl
from recycle.runtime.net.ordered.communicators import watch
from recycle.runtime.net.ordered.library import Communicator, Kind

NAME = "name"
SPIN, RESTS = 0.001, (0.00005, 0.001)
"""For how many seconds one looks without a rest, and the shortest and the longest rest after that."""

ABORT = 5.0
"""Seconds that giving up may take before what is left of it is left alone."""


class DeviceMark(Protocol):
    """A place in a stream."""

    def query(self) -> bool:
        """Whether everything before it is done; it waits for nothing."""


class DeviceLane(Protocol):
    """A stream of one communicator."""

    @property
    def number(self) -> int:
        """By which NCCL knows it."""

    def follow(self, tensor: torch.Tensor) -> None:
        """Have what comes next wait for what this thread has started so far, and a tensor's memory for what comes next.

        Args:
            tensor: what comes next is about.
        """

    def mark(self) -> DeviceMark:
        """A place after all that was put in so far."""

    def precede(self, mark: Any) -> None:
        """Have what this thread starts next on the device come after a place in this lane."""


class CudaLane:
    """A lane of a GPU: a stream.

    Args:
        device: which.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def number(self) -> int:
        """See DeviceLane."""
        return int(self._stream.cuda_stream)

    def follow(self, tensor: torch.Tensor) -> None:
        """See DeviceLane."""
        self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
        tensor.record_stream(self._stream)

    def mark(self) -> DeviceMark:
        """See DeviceLane."""
        return self._stream.record_event()  # type: ignore[no-any-return]

    def precede(self, mark: torch.cuda.Event) -> None:
        """See DeviceLane."""
        torch.cuda.current_stream(self._stream.device).wait_event(mark)


class NcclCommunicator:
    """One rank's end; a Communicator.

    Args:
        functions: NCCL's.
        handle: of it.
        rank: of this one.
        lane: in which its operations run.
        settle: looks until something is over, as long as nobody says that it will never be.
    """

    def __init__(
        self,
        functions: Functions,
        handle: Handle,
        rank: int,
        lane: DeviceLane,
        settle: Callable[[Callable[[], bool]], None],
    ) -> None:
        self.aborted = False
        self.handle = handle
        self._functions = functions
        self._rank = rank
        self._lane = lane
        self._settle = settle
        self._under_way: dict[int, DeviceMark] = {}
        self._entering: torch.Tensor | None = None
        self._given = 0
        # Nobody may use a communicator while it is aborted, nor afterwards.
        self.in_use = threading.Lock()

    @property
    def complete(self) -> bool:
        """See Communicator."""
        return self._is_still()

    def start(self, kind: Kind, tensor: torch.Tensor) -> int:
        """See Communicator."""
        # What is empty may have no address, which NCCL can be told to refuse.
        if tensor.numel():
            self._enter(kind, tensor)
        place = self._given
        self._given += 1
        self._under_way[place] = self._lane.mark()
        return place

    def _enter(self, kind: Kind, tensor: torch.Tensor) -> None:
        self._lane.follow(tensor)
        # Another thread puts it into the stream. Until then, its memory is not known to be in use there; so where this
        # one does not wait for that, the tensor stays with the communicator.
        self._entering = tensor
        with self.in_use:
            if self.aborted:
                raise RuntimeError("the communicator was aborted")
            self._functions.start(kind, tensor.detach(), self.handle, self._rank, self._lane.number)
        # After the first operation, it takes no time.
        self._settle(self._is_still)
        if not self.aborted:
            self._entering = None

    def is_over(self, place: int) -> bool:
        """See Communicator."""
        if self.aborted:
            return True
        mark = self._under_way.get(place)
        if mark is not None and mark.query():
            del self._under_way[place]
            return True
        if mark is not None:
            self._is_still()  # raises where it went wrong
        return mark is None

    def precede(self, place: int) -> None:
        """See Communicator."""
        mark = self._under_way.get(place)
        if mark is not None:
            self._lane.precede(mark)

    def _is_still(self) -> bool:
        """Whether nothing that was begun is still on its way into the stream."""
        with self.in_use:
            return self.aborted or not self._functions.in_progress(self.handle)


class NcclLibrary:
    """Makes communicators of one rank for one view; it is a Library.

    What a rank starts is said to run in one queue. With ``CUDA_DEVICE_MAX_CONNECTIONS=1`` it does. Without, the first
    launch of a kernel loads it, and memory is given back to the device, once all that the device is at is over: a
    receive that was started early would wait for its sender, and the sender for what this rank cannot compute.

    Args:
        device: the rank's GPU.
        patience: how long others are waited for.
        check: raises when the view is over; asked while others are waited for.
        functions: NCCL's.
        make_lane: makes what operations run in.
    """

    def __init__(
        self,
        device: torch.device,
        patience: timedelta,
        check: Callable[[], None],
        functions: Functions | None = None,
        make_lane: Callable[[torch.device], DeviceLane] = CudaLane,
    ) -> None:
        self.device = device
        self.one_queue = True
        self._functions = functions or Nccl()
        self._patience = patience
        self._check = check
        self._make_lane = make_lane
        self._began = 0.0
        self._rest = RESTS[0]
        self._marking = threading.Lock()

    def join(self, store: Store, rank: int, size: int) -> NcclCommunicator:
        """See Library."""
        functions = self._functions
        if rank == 0:
            name = functions.unique_id()
            store.set(NAME, name.hex())
        else:
            self._settle(lambda: store.check([NAME]))
            name = bytes.fromhex(store.get(NAME).decode())
        with _on(self.device):
            handle = functions.join(name, rank, size)
        return NcclCommunicator(functions, handle, rank, self._make_lane(self.device), self._settle)

    def rest(self, over: Callable[[], bool]) -> None:
        """See Library."""
        now = time.monotonic()
        if now - self._began > self._rest + RESTS[1]:
            # It is another wait than the last time.
            self._began, self._rest = now, RESTS[0]
        if now - self._began > SPIN:
            time.sleep(self._rest)
            self._rest = min(2 * self._rest, RESTS[1])

    def abort(self, communicators: Sequence[Communicator]) -> None:
        """See Library: nothing is waited for on the device, and what does not end is left alone."""
        with self._marking:
            given_up = [each for each in communicators if isinstance(each, NcclCommunicator) and not each.aborted]
            for each in given_up:
                # From here on whoever waits is free.
                each.aborted = True
        # The end of one can wait for that of another, so all are told at once.
        threads = [
            threading.Thread(target=self._abort, args=(each,), name="abort of a communicator", daemon=True)
            for each in given_up
        ]
        for thread in threads:
            thread.start()
        end = time.monotonic() + ABORT
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _abort(self, communicator: NcclCommunicator) -> None:
        # Calls return at once, and whoever comes later finds it aborted.
        with communicator.in_use:
            pass
        with _on(self.device):
            self._functions.abort(communicator.handle)

    def _settle(self, over: Callable[[], bool]) -> None:
        watch(self, over, self._patience, "somebody did not come", self._check)


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Make a device this thread's: CUDA begins with the first one in each, and would set that up."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
