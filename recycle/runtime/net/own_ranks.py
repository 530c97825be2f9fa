"""The groups of a server's ranks that are their own: made once for a server's life, and ended by no view.

Gloo carries what lies in host memory. What lies on GPUs goes over NCCL where the transport is NCCL's: there the streams
of a device wait for it, and no host does. With the staged transport it goes through host memory, as between servers.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, Work

from recycle.control.membership.participant import Participant
from recycle.runtime.device import host_copy, room_in_host_memory
from recycle.runtime.net.gloo.groups import make_connected_backend, wait_in_slices
from recycle.runtime.net.nccl.groups import make_device_backend
from recycle.runtime.net.network import NetworkOptions
from recycle.runtime.net.process_groups import METHODS, finished, tensors_of
from recycle.runtime.net.staged.network import Crosses, is_on_device
from recycle.runtime.net.stop_line import OwnGroup
from recycle.runtime.plain_words import losing

BETWEEN_TWO = ("send", "recv", "recv_anysource")
"""What gloo breaks off if a wait for it is interrupted."""

IN_PLACE = ("allreduce", "broadcast", "reduce", "allreduce_coalesced", "send")
"""Calls whose first argument is read; that of all others is only filled."""


class OwnWork(dist.Work):
    """A call of such a group that is under way.

    Args:
        work: torch's own object.
        check: raises when no other rank will come any more; None where the wait cannot be interrupted.
        partners: what the other ranks are called.
        finish: called one after the other when it is over.
    """

    def __init__(
        self,
        work: Work,
        check: Callable[[], None] | None,
        partners: Sequence[str],
        finish: Sequence[Callable[[], None]],
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
        with losing(self._partners):
            if self._check is None:
                self._work.wait()
            else:
                wait_in_slices(self._work, self._check, self._partners)
            for act in self._finish:
                act()
        return True


class OwnRanks:
    """Makes them, each when it is first called, and starts their calls.

    Args:
        store: gives the store where the ranks find each other.
        participant: whose rank this is.
        options: how they meet, and what carries their tensors.
        crosses: which tensors are not in host memory.
    """

    def __init__(
        self,
        store: Callable[[], Store],
        participant: Participant,
        options: NetworkOptions,
        crosses: Crosses = is_on_device,
    ) -> None:
        self._store = store
        self._participant = participant
        self._options = options
        self._crosses = crosses
        self._backends: dict[tuple[str, tuple[int, ...]], Any] = {}
        # Of each group once: a layer calls several times in every micro-batch.
        self._partners = cache(self._partners_among)

    def start(
        self,
        group: OwnGroup,
        check: Callable[[], None],
        name: str,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
    ) -> Work:
        """Start a call of the group of some ranks; all of them make the same calls in the same order.

        Args:
            group: of these ranks.
            check: raises when one of them will not come any more.
            name: of the call, as torch calls it of a process group.
            arguments: of the call.
            keywords: of the call.

        Returns:
            What is waited for; over NCCL it is torch's own, for which the device's stream waits and not the host.

        Raises:
            ConnectionLost: one of the ranks is gone, and so is this server.
        """
        partners = self._partners(group.numbers)
        crosses = any(map(self._crosses, tensors_of(arguments)))
        kind = "nccl" if crosses and self._options.transport == "nccl" else "gloo"
        with losing(partners):
            start = getattr(self._backend(kind, group), METHODS[name])
            if kind == "nccl":
                # Of what is waited for at once, torch puts the wait into the stream itself, and returns nothing.
                done: Work | None = start(*arguments, **keywords)
                return finished(None) if done is None else done
            finish: list[Callable[[], None]] = []
            if crosses:
                arguments = self._through_host(name, arguments, finish)
            if name == "allgather":
                arguments = _of_one_length(finish, *arguments)
            work = start(*arguments, **keywords)
            return OwnWork(work, None if name in BETWEEN_TWO else check, partners, finish)

    def _partners_among(self, numbers: tuple[int, ...]) -> list[str]:
        own = self._participant.rank
        return [own._replace(number=each).of(self._participant.member) for each in numbers if each != own.number]

    def _backend(self, kind: str, group: OwnGroup) -> Any:
        numbers = group.numbers
        if (kind, numbers) not in self._backends:
            name = f"own/{self._participant.member}/{kind}/{'-'.join(map(str, numbers))}"
            make = make_connected_backend
            if kind == "nccl":
                make = partial(make_device_backend, settings=group.settings)
            place = numbers.index(self._participant.rank.number)
            self._backends[kind, numbers] = make(PrefixStore(name, self._store()), place, len(numbers), self._options)
        return self._backends[kind, numbers]

    def _through_host(self, name: str, arguments: Sequence[Any], finish: list[Callable[[], None]]) -> list[Any]:
        """The arguments in host memory; what brings the results to where they belong is added to what finishes."""
        results: list[tuple[torch.Tensor, torch.Tensor]] = []

        def on_host(given: Any, room: Callable[[torch.Tensor], torch.Tensor]) -> Any:
            if isinstance(given, (list, tuple)):
                return [on_host(each, room) for each in given]
            if not isinstance(given, torch.Tensor) or not self._crosses(given):
                return given
            host = room(given)
            results.append((given, host))
            return host

        first = on_host(arguments[0], host_copy if name in IN_PLACE else room_in_host_memory)
        filled = [] if name == "send" else list(results)

        def bring() -> None:
            for tensor, host in filled:
                tensor.detach().copy_(host, non_blocking=True)

        finish.append(bring)
        return [first, *(on_host(each, host_copy) for each in arguments[1:])]


def _of_one_length(
    finish: list[Callable[[], None]], outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any
) -> Sequence[Any]:
    """What gathers parts: they may have any lengths, as over NCCL, which all ranks know; gloo wants one."""
    (mine,), (parts,) = inputs, outputs
    longest = max(each.numel() for each in parts)
    if all(each.numel() == longest for each in parts):
        return outputs, inputs, options
    padded = mine.new_zeros(longest)
    padded[: mine.numel()] = mine.reshape(-1)
    found = [torch.empty_like(padded) for _ in parts]

    def take_parts() -> None:
        for part, each in zip(parts, found, strict=True):
            part.copy_(each[: part.numel()].view(part.shape))

    finish.insert(0, take_parts)
    return [found], [padded], options
