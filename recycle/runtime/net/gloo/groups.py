"""Gloo's process groups, and reductions in them."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.distributed import AllreduceOptions, ProcessGroupGloo, ReduceOp, Store, Work

from recycle.control.membership.open_files import why_none_opens
from recycle.runtime.errors import RunError
from recycle.runtime.net.gloo.backend import Directory, GlooBackend
from recycle.runtime.net.gloo.listeners import make_device
from recycle.runtime.net.network import Group, NetworkOptions, ReductionKind
from recycle.runtime.plain_words import losing, lost
from recycle.threads import needing_threads

SLICE = timedelta(milliseconds=50)
EXPIRED = "Operation timed out"


class GlooReduction:
    """A reduction that is under way.

    Args:
        work: torch's own object.
        check: raises when the reduction will not come to its end.
        partners: what the ranks are called that this one exchanges with.
    """

    def __init__(self, work: Work, check: Callable[[], None], partners: Sequence[str]) -> None:
        self._work = work
        self._check = check
        self._partners = partners

    def wait(self) -> None:
        """See Reduction."""
        wait_in_slices(self._work, self._check, self._partners)


class GlooGroup(Group):
    """A group over one of gloo's.

    Args:
        backend: this rank's part of it.
        check: raises when a reduction will not come to its end.
    """

    def __init__(self, backend: GlooBackend, check: Callable[[], None]) -> None:
        self._backend = backend
        self._check = check

    def start(self, kind: ReductionKind, tensor: torch.Tensor) -> GlooReduction:
        """See Group."""
        partners, options = self._backend.neighbours, AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.SUM if kind == "sum" else ReduceOp.MAX)
        with losing(partners):
            return GlooReduction(self._backend.allreduce([tensor], options), self._check, partners)


def make_backend(rank: int, names: Sequence[str], options: NetworkOptions) -> GlooBackend:
    """Make this rank's part of a group. It has no connection yet, and has told no other rank where it listens.

    It listens on a device of its own, because a lazy device tells ranks apart by their number alone.

    Args:
        rank: of this one.
        names: what people call the ranks.
        options: how they meet.
    """
    directory = Directory()
    # Gloo waits five times as long for a connection.
    backend = _make(
        directory, rank, len(names), _make_device(options, lazy_init=True), options, options.rebuild_timeout / 5
    )
    return GlooBackend(backend, rank, names, directory)


def make_connected_backend(store: Store, rank: int, size: int, options: NetworkOptions) -> Any:
    """Torch's own part of a group, as it makes one itself: connected with all others when this returns.

    Args:
        store: where the ranks find each other; nobody else uses it.
        rank: of this one.
        size: of the group.
        options: how they meet.

    Raises:
        RuntimeError: one of them did not come, in torch's words.
    """
    device, listener = make_device(partial(_make_device, options))
    with listener.open():
        return _make(store, rank, size, device, options, options.rebuild_timeout)


@needing_threads(1)
def _make_device(options: NetworkOptions, **how: bool) -> Any:
    gloo: Any = ProcessGroupGloo  # the stubs leave most of it out
    try:
        return gloo.create_device(hostname=options.address, **how)
    except RuntimeError as error:
        # In gloo's words, the address would be to blame. What this host lacks for now is no fault of the user's.
        why = why_none_opens()
        raise (OSError if why else RunError)(f"nothing can listen at {options.address}: {why or error}") from error


@needing_threads(2)
def _make(store: Store, rank: int, size: int, device: Any, options: NetworkOptions, timeout: timedelta) -> Any:
    gloo: Any = ProcessGroupGloo
    settings = gloo._Options()  # noqa: SLF001 - the only way to choose the address
    settings._devices = [device]  # noqa: SLF001
    settings._timeout = timeout  # noqa: SLF001
    backend = gloo(store, rank, size, settings)
    # Of reductions: each wait for a transfer has a time-out of its own.
    backend._set_default_timeout(options.transfer_timeout)  # noqa: SLF001
    return backend


def wait_in_slices(work: Work, check: Callable[[], None], partners: Sequence[str]) -> None:
    """Wait for what is under way in a group.

    If somebody in it is gone, gloo does not always end it before its time-out, even where all its connections are
    closed. So the wait is interrupted now and then, to see whether anybody has raised the alarm.

    Args:
        work: torch's own object.
        check: raises when it will not come to its end.
        partners: what the other ranks are called.

    Raises:
        ConnectionLost: it failed.
        ViewBroken: the check raised it.
    """
    while True:
        try:
            work.wait(SLICE)
            return
        except RuntimeError as error:
            if EXPIRED not in str(error):
                raise lost(error, partners) from error
        check()
