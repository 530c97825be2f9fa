"""Links over gloo's process groups."""

from collections.abc import Callable
from datetime import timedelta
from itertools import count

import torch
from torch.distributed import Store, Work

from recycle.runtime.net.gloo.backend import GlooBackend
from recycle.runtime.net.gloo.connecting import LazyGroup, connect_groups
from recycle.runtime.net.gloo.groups import make_backend
from recycle.runtime.net.gloo.tags import tag_of
from recycle.runtime.net.gloo.transfers import Waits
from recycle.runtime.net.network import Link, NetworkOptions, PrivateLink, Transfer
from recycle.runtime.net.transfer_key import TransferKey
from recycle.runtime.plain_words import losing


class GlooTransfer(Transfer):
    """A transfer that is under way.

    Args:
        work: torch's own object.
        timeout: after which a silent partner is an error.
        waits: waits for it, and may have to give it up.
        partner: what the other end is called.
    """

    def __init__(self, work: Work, timeout: timedelta, waits: Waits, partner: str) -> None:
        self._work = work
        self._partner = partner
        self._timeout = timeout
        self._waits = waits

    def wait(self) -> None:
        """See Transfer."""
        with losing([self._partner]):
            self._waits.wait(self._work, self._timeout)


class GlooLink(Link):
    """A link between two ranks of a process group. There is one at most for each of its other ranks.

    Args:
        backend: this process's part of it.
        rank: of this process.
        peer: the rank of the other one.
        epoch: of the view.
        timeout: after which a silent partner is an error.
        waits: waits for all transfers of this process in the group.
    """

    def __init__(
        self, backend: GlooBackend, rank: int, peer: int, epoch: int, timeout: timedelta, waits: Waits
    ) -> None:
        self._backend = backend
        self._peer = peer
        self._upwards = peer > rank
        self._epoch = epoch
        self._timeout = timeout
        self._waits = waits
        self._sent = count()
        self._received = count()

    def send(self, tensor: torch.Tensor, key: TransferKey) -> GlooTransfer:
        """See Link."""
        tag = tag_of(self._epoch, self._upwards, next(self._sent), key)
        return self._transfer(self._backend.send, tensor, tag)

    def receive(self, tensor: torch.Tensor, key: TransferKey) -> GlooTransfer:
        """See Link."""
        tag = tag_of(self._epoch, not self._upwards, next(self._received), key)
        return self._transfer(self._backend.recv, tensor, tag)

    def _transfer(
        self, start: Callable[[list[torch.Tensor], int, int], Work], tensor: torch.Tensor, tag: int
    ) -> GlooTransfer:
        partner = self._backend.names[self._peer]
        with losing([partner]):
            work = start([tensor], self._peer, tag)
        return GlooTransfer(work, self._timeout, self._waits, partner)


class GlooPrivateLink(GlooLink, PrivateLink):
    """A private link, over a process group of two.

    Args:
        store: where the two find each other; nobody else uses it.
        first: whether this process is the first of them.
        options: how they meet.
        check: raises when the other one will not come.

    Raises:
        ConnectionLost: the other one did not come.
    """

    def __init__(self, store: Store, first: bool, options: NetworkOptions, check: Callable[[], None]) -> None:
        rank, peer = (0, 1) if first else (1, 0)
        backend = make_backend(rank, ["the other process"] * 2, options)
        connect_groups(store, [LazyGroup("pair", backend, rank, [peer])], options.rebuild_timeout, check)
        super().__init__(backend, rank, peer, 0, options.transfer_timeout, Waits())

    def unblock(self) -> None:
        """See PrivateLink."""
        self._backend.cut()
        self._waits.give_up()
