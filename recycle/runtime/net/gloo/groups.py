"""Gloo's process groups, and reductions in them."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import AllreduceOptions, ProcessGroupGloo, ReduceOp, Store, Work

from recycle.runtime.errors import ConnectionLost
from recycle.runtime.net.gloo.backend import GlooBackend
from recycle.runtime.net.network import NetworkOptions

SLICE = timedelta(milliseconds=50)
EXPIRED = "Operation timed out"


class GlooReduction:
    """A reduction that is under way.

    If somebody in it is gone, gloo does not always end it before its time-out, even where all its connections are
    closed. So the wait is interrupted now and then, to see whether anybody has raised the alarm.

    Args:
        work: torch's own object.
        check: raises when the reduction will not come to its end.
    """

    def __init__(self, work: Work, check: Callable[[], None]) -> None:
        self._work = work
        self._check = check

    def wait(self) -> None:
        """See Reduction."""
        while True:
            try:
                self._work.wait(SLICE)
                return
            except RuntimeError as error:
                if EXPIRED not in str(error):
                    raise lost(error) from error
            self._check()


class GlooGroup:
    """A group over one of gloo's.

    Args:
        backend: this rank's part of it.
        check: raises when a reduction will not come to its end.
    """

    def __init__(self, backend: GlooBackend, check: Callable[[], None]) -> None:
        self._backend = backend
        self._check = check

    def sum(self, tensor: torch.Tensor) -> None:
        """See Group."""
        self.start_sum(tensor).wait()

    def start_sum(self, tensor: torch.Tensor) -> GlooReduction:
        """See Group."""
        return GlooReduction(begin(lambda: self._backend.allreduce([tensor])), self._check)

    def maximum(self, tensor: torch.Tensor) -> None:
        """See Group."""
        self.start_maximum(tensor).wait()

    def start_maximum(self, tensor: torch.Tensor) -> GlooReduction:
        """See Group."""
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.MAX)
        return GlooReduction(begin(lambda: self._backend.allreduce([tensor], options)), self._check)


def make_backend(store: Store, rank: int, size: int, options: NetworkOptions) -> GlooBackend:
    """Make this rank's part of a group, connected with nobody yet.

    It listens on a device of its own, because a lazy device knows who connects by their rank alone.

    Args:
        store: where the ranks find each other; nobody else uses it.
        rank: of this one.
        size: how many there are.
        options: how they meet.

    Raises:
        ConnectionLost: the store is gone.
    """
    gloo: Any = ProcessGroupGloo  # the stubs leave most of it out
    settings = gloo._Options()  # noqa: SLF001 - the only way to choose the address
    settings._devices = [gloo.create_device(hostname=options.address, lazy_init=True)]  # noqa: SLF001
    # Gloo waits five times as long for a connection.
    settings._timeout = options.rebuild_timeout / 5  # noqa: SLF001
    try:
        backend = gloo(store, rank, size, settings)
    except RuntimeError as error:
        raise lost(error) from error
    # Of reductions: each wait for a transfer has a time-out of its own.
    backend._set_default_timeout(options.transfer_timeout)  # noqa: SLF001
    return GlooBackend(backend)


def begin(start: Callable[[], Work]) -> Work:
    """Start something in a group.

    Raises:
        ConnectionLost: it cannot be started any more.
    """
    try:
        return start()
    except RuntimeError as error:
        raise lost(error) from error


def lost(error: RuntimeError) -> ConnectionLost:
    """What an error of gloo's means here."""
    return ConnectionLost(str(error).strip().split("\n")[0])
