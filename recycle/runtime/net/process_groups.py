"""Process groups of torch's whose calls can be taken over by somebody else.

Torch makes them wherever it would make its own, and knows no difference.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d

from recycle.job import Server
from recycle.runtime.errors import RunError
from recycle.runtime.net.gloo.releases import TRIED

CPU = torch.device("cpu")

METHODS: Mapping[str, str] = {
    **{name: name for name in ("allreduce", "broadcast", "allgather", "gather", "scatter", "barrier", "reduce")},
    **{name: name for name in ("reduce_scatter", "alltoall", "allreduce_coalesced", "allgather_coalesced")},
    **{name: name for name in ("send", "recv", "recv_anysource", "alltoall_base", "monitored_barrier")},
    **{name: name for name in ("_allgather_base", "_reduce_scatter_base")},
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_to_all_single": "alltoall_base",
}
"""What torch calls of a process group, by what its backend calls it."""


Carried = Callable[..., dist.Work | None]
"""Carries out a call: it is done then, or under way."""


class ReplaceableGroup(dist.ProcessGroup):
    """A process group whose calls can be handed over; until then its backend does it all.

    Args:
        rank: in the group.
        size: of the group.

    Attributes:
        servers: whose ranks are in it, in the order of these, since its calls were handed over.
        numbers: which ranks of each of them are in it.
        counted: this rank in the group, and the group's size, as they are told.
        settings: torch's options of a communicator for what lies on devices; None for the usual ones.
    """

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # of subclasses, whose store is their backend's
        self.servers: tuple[Server, ...] = ()
        self.numbers: tuple[int, ...] = ()
        self.counted = (rank, size)
        self.settings: Any = None
        # Torch's own methods are no way to the backend: on subclasses they keep Python's global lock, which the
        # backend's threads may wait for.
        for name, inner in METHODS.items():
            setattr(self, name, partial(self._pass_on, inner))

    def rank(self) -> int:
        """Of this process in the group."""
        return self.counted[0]

    def size(self) -> int:
        """How many ranks the group has."""
        return self.counted[1]

    def hand_over(self, servers: tuple[Server, ...], call: Carried) -> None:
        """From now on, somebody else carries out the calls.

        Args:
            servers: whose ranks are in it, in the order of these.
            call: carries out a call of torch's, given its name and arguments.
        """
        self.servers = servers
        for name in METHODS:
            setattr(self, name, partial(_do, call, name))

    def _pass_on(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        return getattr(self._get_backend(CPU), name)(*arguments, **keywords)


def _do(call: Carried, name: str, *arguments: Any, **keywords: Any) -> Any:
    work = call(name, *arguments, **keywords)
    if work is not None:
        return work
    return finished(arguments[0] if arguments else None)


def call_alone(_: str, *arguments: Any, **__: Any) -> dist.Work:
    """What a call brings in a group of one, which waits for nothing: what is given is the result."""
    results, given, *_rest = *arguments, (), ()
    for result, tensor in zip(tensors_of(results), tensors_of(given), strict=False):
        result.detach().view(-1).copy_(tensor.detach().reshape(-1))
    return finished(None)


def tensors_of(given: Any) -> Iterator[torch.Tensor]:
    """The tensors in an argument of a call, one by one."""
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for each in given:
            yield from tensors_of(each)


def finished(result: Any) -> dist.Work:
    """A call that is over, with what it brought."""
    done: Any = torch.futures.Future()
    done.set_result(result)
    work: dist.Work = _create_work_from_future(done)
    return work


def make_replaceable_groups(take_over: Callable[[ReplaceableGroup], None] | None = None) -> list[ReplaceableGroup]:
    """Have torch make such groups from now on, of which those of at least two ranks appear in this list.

    Args:
        take_over: takes over the calls of each as it is made, so that it connects to nobody; None where all its members
            make a group together.

    Raises:
        RunError: this torch makes its groups in another way.
    """
    made: list[ReplaceableGroup] = []

    class ListedGroup(ReplaceableGroup):
        def __init__(self, _: dist.Store, rank: int, size: int) -> None:
            super().__init__(rank, size)
            if size == 1:
                # It cannot lose anybody, and gloo would have the host wait for the device.
                self.hand_over((), call_alone)
                return
            made.append(self)
            if take_over is not None:
                take_over(self)

    if not hasattr(distributed_c10d, "ProcessGroup"):
        raise RunError(
            f"torch {torch.__version__} makes its process groups in another way: use torch {' or '.join(TRIED)}"
        )
    distributed_c10d.ProcessGroup = ListedGroup  # type: ignore[assignment,misc]
    if take_over is not None:
        distributed_c10d.ProcessGroupGloo = StubBackend  # type: ignore[assignment,misc]
    return made


@contextmanager
def numbered_without(dead: Collection[int], shrunk: Sequence[ReplaceableGroup]) -> Iterator[None]:
    """For a while, ranks are numbered as if some had never been started.

    Args:
        dead: those.
        shrunk: groups that have no place for them meanwhile, the group of all among them; in others their places stay.
    """
    known = distributed_c10d._world.pg_group_ranks  # noqa: SLF001 - torch tells it to nobody
    alive = [rank for rank in range(dist.get_world_size()) if rank not in dead]
    given, counted = dict(known), [group.counted for group in shrunk]
    numbers = {rank: number for number, rank in enumerate(alive)}
    try:
        for group, ranks in given.items():
            known[group] = {numbers[rank]: place for rank, place in ranks.items() if rank in numbers}
        for group in shrunk:
            members = [place for rank, place in given[group].items() if rank in numbers]
            known[group] = {number: place for place, number in enumerate(known[group])}
            group.counted = members.index(group.rank()), len(members)
        yield
    finally:
        known.update(given)
        for group, was in zip(shrunk, counted, strict=True):
            group.counted = was


class StubBackend(dist.ProcessGroupGloo):
    """What a group has for a backend that will never be called: torch wants one.

    Args:
        timeout: of its calls.
        others: what some releases of torch add, for backends that will be called.
    """

    def __init__(self, _: dist.Store, __: int, ___: int, timeout: timedelta, **others: Any) -> None:
        super().__init__(dist.HashStore(), 0, 1, timeout=timeout)
