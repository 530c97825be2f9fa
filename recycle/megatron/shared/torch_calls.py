"""What torch calls of a process group, in terms of two calls that somebody carries out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch.distributed import ReduceOp, Work

from recycle.runtime.errors import RunError

REDUCTIONS: Sequence[tuple[Any, Callable[[torch.Tensor], torch.Tensor]]] = (
    (ReduceOp.SUM, lambda rows: rows.sum(0, dtype=rows.dtype)),
    (ReduceOp.PRODUCT, lambda rows: rows.prod(0, dtype=rows.dtype)),
    (ReduceOp.MIN, lambda rows: rows.amin(0)),
    (ReduceOp.MAX, lambda rows: rows.amax(0)),
    (ReduceOp.AVG, lambda rows: rows.mean(0)),
)


class Carrier(NamedTuple):
    """Carries out what the ranks of a process group do together.

    Attributes:
        gather: gives what all put in.
        reduce: gives the sum, product, minimum or maximum of that.
    """

    gather: Callable[[torch.Tensor], list[torch.Tensor]]
    reduce: Callable[[torch.Tensor, Any], torch.Tensor]

    @classmethod
    def by_gathering(cls, gather: Callable[[torch.Tensor], list[torch.Tensor]]) -> Self:
        """One that reduces what it has gathered."""
        return cls(gather, lambda tensor, how: reduction_of(how)(torch.stack(gather(tensor))))


def never(*_: Any, **__: Any) -> None:
    """Starts no call of torch's own: all are carried."""


class Calls(NamedTuple):
    """The calls of one process group.

    Attributes:
        carrier: carries them out.
        rank: of this process in the group.
        size: how many ranks the group has.
        start: starts one of torch's own, given its name and arguments; None where such calls are carried now. In a
            group of ranks of one server, that is at all times but while a list is executed.
    """

    carrier: Carrier
    rank: int
    size: int
    start: Callable[..., Work | None] = never

    def carry_out(self, name: str, *arguments: Any, **keywords: Any) -> Work | None:
        """Start a call, and give what is waited for; or carry it out, so that its result is there then.

        Raises:
            ViewBroken: one of the ranks is gone, and so is this server.
            RunError: nobody knows what it would mean when members are dead.
        """
        work = self.start(name, *arguments, **keywords)
        if work is not None:
            return work
        action = ACTIONS.get(name)
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


def reduction_of(how: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """What makes one tensor of a row of them, as a reduction of torch's does.

    Raises:
        RunError: nobody knows how.
    """
    reduction = next((act for each, act in REDUCTIONS if how == each), None)
    if reduction is None:
        raise RunError(
            f"torch.distributed: a reduction by {how.op.name} is not carried through failures; do without it"
        )
    return reduction
