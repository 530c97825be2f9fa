"""The groups of a server's ranks that are their own: made once for a server's life, and ended by no view."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, Work

from recycle.control.membership.participant import Participant
from recycle.runtime.net.gloo.groups import EXPIRED, SLICE, make_connected_backend
from recycle.runtime.net.network import NetworkOptions
from recycle.runtime.net.process_groups import METHODS
from recycle.runtime.plain_words import lost

BETWEEN_TWO = ("send", "recv", "recv_anysource")
"""What gloo breaks off if a wait for it is interrupted."""


class OwnWork(dist.Work):
    """A call of such a group that is under way.

    Args:
        work: torch's own object.
        check: raises when no other rank will come any more; None where the wait cannot be interrupted.
        partners: what the other ranks are called.
        finish: called when it is over.
    """

    def __init__(
        self,
        work: Work,
        check: Callable[[], None] | None,
        partners: Sequence[str],
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._work = work
        self._check = check
        self._partners = partners
        self._finish = finish

    def is_completed(self) -> bool:
        """Whether it is over."""
        return self._work.is_completed()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for its end; a failure ends that, and no time.

        Raises:
            ConnectionLost: one of the ranks is gone, and so is this server.
            ViewBroken: the check raised it.
        """
        while True:
            try:
                _ = self._work.wait() if self._check is None else self._work.wait(SLICE)
                self._finish()
                return True
            except RuntimeError as error:
                if self._check is None or EXPIRED not in str(error):
                    raise lost(error, self._partners) from error
            self._check()


class OwnRanks:
    """Makes them, each when it is first called, and starts their calls.

    Args:
        store: gives the store where the ranks find each other.
        participant: whose rank this is.
        options: how they meet.
    """

    def __init__(self, store: Callable[[], Store], participant: Participant, options: NetworkOptions) -> None:
        self._store = store
        self._participant = participant
        self._options = options
        self._backends: dict[tuple[int, ...], Any] = {}

    def start(
        self,
        numbers: tuple[int, ...],
        check: Callable[[], None],
        name: str,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
    ) -> OwnWork:
        """Start a call of the group of some ranks; all of them make the same calls in the same order.

        Args:
            numbers: of the ranks, in the order of the group.
            check: raises when one of them will not come any more.
            name: of the call, as torch calls it of a process group.
            arguments: of the call.
            keywords: of the call.

        Raises:
            ConnectionLost: one of the ranks is gone, and so is this server.
        """
        own = self._participant.rank
        partners = [own._replace(number=each).of(self._participant.member) for each in numbers if each != own.number]
        try:
            if numbers not in self._backends:
                self._backends[numbers] = self._make(numbers)
            start = getattr(self._backends[numbers], METHODS[name])
            if name == "allgather":
                return _start_all_gather(start, check, partners, *arguments)
            return OwnWork(start(*arguments, **keywords), None if name in BETWEEN_TWO else check, partners)
        except RuntimeError as error:
            raise lost(error, partners) from error

    def _make(self, numbers: tuple[int, ...]) -> Any:
        store = PrefixStore(f"own/{self._participant.member}/{'-'.join(map(str, numbers))}", self._store())
        place = numbers.index(self._participant.rank.number)
        return make_connected_backend(store, place, len(numbers), self._options)


def _start_all_gather(
    start: Callable[..., Work],
    check: Callable[[], None],
    partners: Sequence[str],
    outputs: list[list[torch.Tensor]],
    inputs: list[torch.Tensor],
    options: Any,
) -> OwnWork:
    """Parts may have any lengths, as over NCCL, which all ranks know; gloo wants one."""
    (mine,), (parts,) = inputs, outputs
    longest = max(each.numel() for each in parts)
    if all(each.numel() == longest for each in parts):
        return OwnWork(start(outputs, inputs, options), check, partners)
    padded = mine.new_zeros(longest)
    padded[: mine.numel()] = mine.reshape(-1)
    found = [torch.empty_like(padded) for _ in parts]

    def finish() -> None:
        for part, each in zip(parts, found, strict=True):
            part.copy_(each[: part.numel()].view(part.shape))

    return OwnWork(start([found], [padded], options), check, partners, finish)
