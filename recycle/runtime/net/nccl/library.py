"""Communicators of NCCL that never block: made eagerly, looked at, and given up from any thread."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
from torch.distributed import Store

from recycle.runtime.errors import ConnectionLost
from recycle.runtime.net.meeting_store import look
from recycle.runtime.net.nccl.bindings import Call, Functions, Handle, Nccl
from recycle.runtime.plain_words import losing
from recycle.threads import start_thread

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

    def follow(self, tensors: Sequence[torch.Tensor]) -> None:
        """Have what comes next wait for what this thread has started so far, and tensors' memory for what comes next.

        Args:
            tensors: what comes next is about.
        """

    def mark(self) -> DeviceMark:
        """A place after all that was put in so far."""

    def precede(self, mark: Any, tensors: Sequence[torch.Tensor]) -> None:
        """Have what this thread starts next on the device come after a place in this lane.

        Args:
            mark: that.
            tensors: what that is about, whose memory is kept for what comes next; none if it was waited for.
        """

    def within(self) -> AbstractContextManager[object]:
        """Within the block, what this thread starts on the device, and takes of its memory, is in this lane."""


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

    def follow(self, tensors: Sequence[torch.Tensor]) -> None:
        """See DeviceLane."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        for each in tensors:
            each.record_stream(self._stream)

    def mark(self) -> DeviceMark:
        """See DeviceLane."""
        return self._stream.record_event()  # type: ignore[no-any-return]

    def precede(self, mark: torch.cuda.Event, tensors: Sequence[torch.Tensor]) -> None:
        """See DeviceLane."""
        current = torch.cuda.current_stream(self._stream.device)
        current.wait_event(mark)
        for each in tensors:
            each.record_stream(current)

    def within(self) -> AbstractContextManager[object]:
        """See DeviceLane."""
        return torch.cuda.stream(self._stream)


class NcclCommunicator:
    """One rank's end of something that carries out operations in the order in which they are given to it.

    Args:
        functions: NCCL's.
        handle: of it.
        lane: in which its operations run.
        settle: looks until something is over, as long as nobody says that it will never be.

    Attributes:
        aborted: whether it was given up on this side; set before anything of it ends by that.
        ending: what tells NCCL so, and until when that is waited for; None before.
        lane: see above.
    """

    def __init__(
        self, functions: Functions, handle: Handle, lane: DeviceLane, settle: Callable[[Callable[[], bool]], None]
    ) -> None:
        self.aborted = False
        self.ending: tuple[threading.Thread, float] | None = None
        self.handle = handle
        self._functions = functions
        self.lane = lane
        self._settle = settle
        self._entering: Sequence[Call] = ()
        # Nobody may use a communicator while it is aborted, nor afterwards.
        self.in_use = threading.Lock()

    @property
    def complete(self) -> bool:
        """Whether all ranks have come, and nothing that was begun is still on its way into the stream.

        Raises:
            RuntimeError: they never will, or it went wrong.
        """
        with self.in_use:
            return self.aborted or not self._functions.in_progress(self.handle)

    def start(self, calls: Sequence[Call]) -> DeviceMark:
        """Give it an operation; gives the place after that in its lane.

        Raises:
            RuntimeError: it takes no more.
        """
        self.lane.follow([each.tensor for each in calls])
        # Another thread puts it into the stream. Until then, its memory is not known to be in use there; so where this
        # one does not wait for that, the tensors stay with the communicator.
        self._entering = calls
        with self.in_use:
            if self.aborted:
                raise RuntimeError("the communicator was aborted")
            # What is empty may have no address, which NCCL can be told to refuse.
            self._functions.start([each for each in calls if each.tensor.numel()], self.handle, self.lane.number)
        # It takes no time unless these ranks connect for it, as with the first operation that takes another algorithm
        # than those before. Then others may come as late as to a transfer.
        self._settle(lambda: self.complete)
        if not self.aborted:
            self._entering = ()
        return self.lane.mark()

    def is_over(self, mark: DeviceMark) -> bool:
        """Whether an operation is done, or never will be on this side; it waits for nothing.

        Args:
            mark: the place after it.

        Raises:
            RuntimeError: it went wrong.
        """
        if self.aborted or mark.query():
            return True
        _ = self.complete  # raises where it went wrong
        return self.aborted


class NcclLibrary:
    """Makes communicators of one rank for one view.

    What a rank starts is said to run in one queue. With ``CUDA_DEVICE_MAX_CONNECTIONS=1`` it does. Without, the first
    launch of a kernel loads it, and memory is given back to the device, once all that the device is at is over: a
    receive that was started early would wait for its sender, and the sender for what this rank cannot compute.

    Args:
        device: the rank's GPU.
        patience: how long others are waited for.
        check: raises when the view is over; asked while others are waited for.
        functions: NCCL's.
        make_lane: makes what operations run in.

    Attributes:
        device: see above.
        one_queue: whether what this rank starts runs one after the other, whatever communicator it goes to.
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
        """Come to a communicator; it is complete when all others have come.

        Args:
            store: where its ranks find each other; nobody else uses it.
            rank: of this one.
            size: how many there are.

        Raises:
            RuntimeError: it cannot be made.
        """
        functions = self._functions
        if rank == 0:
            name = functions.unique_id()
            store.set(NAME, name.hex())
        else:
            found: list[bytes] = []

            def is_there() -> bool:
                found.extend(look(store, [NAME]) or [])
                return bool(found)

            self._settle(is_there)
            name = bytes.fromhex(found[0].decode())
        with _on(self.device):
            handle = functions.join(name, rank, size)
        return NcclCommunicator(functions, handle, self._make_lane(self.device), self._settle)

    def rest(self, over: Callable[[], bool]) -> None:
        """Let some time pass before the next look.

        Args:
            over: what is waited for; it is not asked here.
        """
        now = time.monotonic()
        if now - self._began > self._rest + RESTS[1]:
            # It is another wait than the last time.
            self._began, self._rest = now, RESTS[0]
        if now - self._began > SPIN:
            time.sleep(self._rest)
            self._rest = min(2 * self._rest, RESTS[1])

    def abort(self, communicators: Sequence[NcclCommunicator]) -> None:
        """Give up communicators on this side, all at once; can be repeated, by any thread.

        A waiting thread is let go at once, and the one that gives up waits for the end of that. What does not end in
        time is left alone.
        """
        with self._marking:
            for each in communicators:
                # From here on whoever waits is free.
                each.aborted = True
            # The end of one can wait for that of another, so all are told at once.
            for each in communicators:
                if each.ending is None:
                    thread = start_thread(partial(self._abort, each), "abort of a communicator")
                    each.ending = thread, time.monotonic() + ABORT
        for thread, end in [each.ending for each in communicators if each.ending is not None]:
            thread.join(max(0.0, end - time.monotonic()))

    def _abort(self, communicator: NcclCommunicator) -> None:
        # Calls return at once, and whoever comes later finds it aborted.
        with communicator.in_use:
            pass
        with _on(self.device):
            self._functions.abort(communicator.handle)

    def watch(
        self, over: Callable[[], bool], patience: timedelta, complaint: str, check: Callable[[], None] = lambda: None
    ) -> None:
        """Look until something is over.

        Args:
            over: what is looked at.
            patience: for how long.
            complaint: what is said then.
            check: asked before each look; what it raises ends this.

        Raises:
            ConnectionLost: it has taken too long, or went wrong.
        """
        end = time.monotonic() + patience.total_seconds()
        with losing():
            while not over():
                check()
                if time.monotonic() > end:
                    raise ConnectionLost(complaint)
                self.rest(over)

    def _settle(self, over: Callable[[], bool]) -> None:
        self.watch(over, self._patience, "somebody did not come", self._check)


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Make a device this thread's: CUDA begins with the first one in each, and would set that up."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
