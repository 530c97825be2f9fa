"""What torch calls of a process group, in terms of two calls that somebody carries out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch.distributed import Work

from recycle.runtime.errors import RunError


class Carrier(Protocol):
    """Carries out what the ranks of a process group do together."""

    def reduce(self, tensor: torch.Tensor, how: Any) -> torch.Tensor:
        """The sum, product, minimum or maximum of what all put in."""

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """What all put in."""


class Post(NamedTuple):
    """One half of a pair.

    Attributes:
        tensor: that is sent, or filled.
        partner: the rank in the group to which it goes, or from which it comes.
    """

    tensor: torch.Tensor
    partner: int


class Pairs:
    """What one rank sends to single others and receives from them, as attention over divided sequences does in a ring.

    It is exchanged when any of it is waited for. There all ranks of the group come together, and each has sent as often
    as it has received: the first that each has sent is exchanged in one call of all, then the second.

    Args:
        carrier: of the group.
        rank: of this process in it.
    """

    def __init__(self, carrier: Carrier, rank: int) -> None:
        self._carrier = carrier
        self._rank = rank
        self._sent: list[Post] = []
        self._awaited: list[Post] = []

    def send(self, post: Post) -> Callable[[], None]:
        """Have a tensor sent, which stays as it is until that is waited for; gives what waits."""
        self._sent.append(post)
        return self._exchange

    def receive(self, post: Post) -> Callable[[], None]:
        """Have a tensor filled; gives what waits for that."""
        self._awaited.append(post)
        return self._exchange

    def drop(self) -> None:
        """Forget what nobody has waited for."""
        self._sent, self._awaited = [], []

    def _exchange(self) -> None:
        sent, awaited = self._sent, self._awaited
        self.drop()
        if len(sent) != len(awaited):
            raise RunError(
                f"torch.distributed: a rank has sent {len(sent)} times and receives {len(awaited)} times: the ranks of "
                "a server send to each other in a ring only; do without what needs more"
            )
        for mine, other in zip(sent, awaited, strict=True):
            content = mine.tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            target = torch.tensor([mine.partner], device=content.device).view(torch.uint8)
            found = self._carrier.gather(torch.cat([target, content]))[other.partner]
            meant, received = (each.clone() for each in found.tensor_split([len(target)]))
            if int(meant.view(torch.int64)) != self._rank:
                raise RunError(
                    f"torch.distributed: rank {self._rank} of a group waits for rank {other.partner}, which has sent "
                    "to another one: the ranks of a server send to each other in a ring only; do without more"
                )
            other.tensor.copy_(received.view(other.tensor.dtype).view(other.tensor.shape))


class OwnCalls(NamedTuple):
    """The calls of a group of ranks of one server: torch's own while a list is executed, and carried at other times.

    Attributes:
        start: starts one of torch's own, given its name and arguments; None where such calls are carried now.
        carried: carries it out.
    """

    start: Callable[..., Work | None]
    carried: "Calls"

    def carry_out(self, name: str, *arguments: Any, **keywords: Any) -> Callable[[], None] | Work | None:
        """See ``Calls.carry_out``.

        Raises:
            ViewBroken: one of the ranks is gone, and so is this server.
        """
        return self.start(name, *arguments, **keywords) or self.carried.carry_out(name, *arguments, **keywords)


class Calls(NamedTuple):
    """The calls of one process group.

    Attributes:
        carrier: carries them out.
        rank: of this process in the group.
        size: how many ranks the group has.
        pairs: what its ranks send to single others. Where a peer may play a rank there is none, and what each has for
            each other one is not carried either.
    """

    carrier: Carrier
    rank: int
    size: int
    pairs: Pairs | None = None

    def carry_out(self, name: str, *arguments: Any, **keywords: Any) -> Callable[[], None] | None:
        """Carry out a call.

        Returns:
            What has to be called when the result is waited for; None where it is there.

        Raises:
            RunError: nobody knows what it would mean when members are dead.
        """
        if self.pairs is not None and name in PAIRED:
            ([tensor], partner, _) = arguments
            return PAIRED[name](self.pairs, Post(tensor, partner))
        action = ACTIONS.get(name) or (None if self.pairs is None else EXCHANGES.get(name))
        if action is None:
            raise RunError(
                f"torch.distributed: {name} is not carried through failures; do without what needs it, or train with "
                "--pipeline-schedule stock"
            )
        action(self, *arguments, **keywords)
        return None


# As torch calls a process group: with lists of one tensor.


def _allreduce(group: Calls, tensors: list[torch.Tensor], opts: Any) -> None:
    (tensor,) = tensors
    tensor.copy_(group.carrier.reduce(tensor, opts.reduceOp))


def _broadcast(group: Calls, tensors: list[torch.Tensor], opts: Any) -> None:
    (tensor,) = tensors
    tensor.copy_(group.carrier.gather(tensor)[opts.rootRank])


def _all_gather(group: Calls, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], _: Any) -> None:
    mine = inputs[0].reshape(-1)
    # Parts may have any length, which all know, and the carrier wants one.
    padded = mine.new_zeros(max(each.numel() for each in outputs[0]))
    padded[: len(mine)] = mine
    for output, found in zip(outputs[0], group.carrier.gather(padded), strict=True):
        output.copy_(found[: output.numel()].view(output.shape))


def _all_gather_single(group: Calls, output: torch.Tensor, tensor: torch.Tensor, _: Any) -> None:
    output.view(-1).copy_(torch.stack(group.carrier.gather(tensor)).view(-1))


def _gather(group: Calls, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> None:
    found = group.carrier.gather(inputs[0])
    if opts.rootRank == group.rank:
        _ = [output.copy_(each) for output, each in zip(outputs[0], found, strict=True)]


def _scatter(group: Calls, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> None:
    (output,) = outputs
    knows = opts.rootRank == group.rank
    parts = torch.stack(inputs[0] if knows else [output] * group.size)
    said = torch.tensor([knows], dtype=torch.uint8, device=parts.device)
    content = torch.cat([parts.view(-1).view(torch.uint8), said])
    found = group.carrier.gather(content)[opts.rootRank]
    if not found[-1]:
        raise RunError(
            f"torch.distributed: rank {opts.rootRank} of a group is dead, and nobody else knows what it scatters; "
            "do without, or train with --pipeline-schedule stock"
        )
    output.copy_(found[:-1].view(parts.dtype).view(parts.shape)[group.rank])


def _reduce_scatter_single(group: Calls, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> None:
    output.copy_(group.carrier.reduce(tensor, opts.reduceOp).chunk(group.size)[group.rank].view(output.shape))


def _reduce_scatter(group: Calls, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> None:
    sizes = [each.numel() for each in inputs[0]]
    reduced = group.carrier.reduce(torch.cat([each.reshape(-1) for each in inputs[0]]), opts.reduceOp)
    outputs[0].copy_(reduced.split_with_sizes(sizes)[group.rank].view(outputs[0].shape))


def _all_to_all_single(
    group: Calls, output: torch.Tensor, tensor: torch.Tensor, _: Any, splits: Sequence[int], __: Any
) -> None:
    parts = torch.tensor([int(each) for each in splits] or [len(tensor) // group.size] * group.size)
    sizes = torch.stack(group.carrier.gather(parts))
    padded = tensor.new_zeros(int(sizes.sum(1).max()), *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    found = group.carrier.gather(padded)
    ends = sizes.cumsum(1)[:, group.rank].tolist()
    lengths = sizes[:, group.rank].tolist()
    received = [row[end - length : end] for row, end, length in zip(found, ends, lengths, strict=True)]
    output.copy_(torch.cat(received).view(output.shape))


def _barrier(group: Calls, opts: Any) -> None:
    group.carrier.gather(torch.zeros(1))


ACTIONS: Mapping[str, Callable[..., None]] = {
    "allreduce": _allreduce,
    "broadcast": _broadcast,
    "allgather": _all_gather,
    "all_gather_single": _all_gather_single,
    "_allgather_base": _all_gather_single,
    "gather": _gather,
    "scatter": _scatter,
    "barrier": _barrier,
}

EXCHANGES: Mapping[str, Callable[..., None]] = {
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_single": _reduce_scatter_single,
    "_reduce_scatter_base": _reduce_scatter_single,
    "all_to_all_single": _all_to_all_single,
    "alltoall_base": _all_to_all_single,
}
"""What torch calls some of them differs between its releases."""

PAIRED: Mapping[str, Callable[[Pairs, Post], Callable[[], None]]] = {"send": Pairs.send, "recv": Pairs.receive}
