"""What torch calls of a process group, in terms of a server's collectives."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch

from recycle.job import Server
from recycle.runtime.errors import RunError
from recycle.runtime.net.process_groups import ReplaceableGroup


class Answers(Protocol):
    """Who carries out what the calls of process groups come down to."""

    def reduce(self, servers: tuple[Server, ...], tensor: torch.Tensor, how: Any) -> torch.Tensor:
        """The sum, product, minimum or maximum over a group."""

    def gather(self, servers: tuple[Server, ...], tensor: torch.Tensor) -> list[torch.Tensor]:
        """What every rank of a group puts in."""


class Calls(NamedTuple):
    """The calls of one process group.

    Attributes:
        answers: carry the calls out.
        servers: by their rank in the group.
        rank: of this server in the group.
    """

    answers: Answers
    servers: tuple[Server, ...]
    rank: int

    def carry_out(self, name: str, *arguments: Any, **keywords: Any) -> None:
        """Carry out a call.

        Raises:
            RunError: nobody knows what it would mean when members are dead.
        """
        action = ACTIONS.get(name)
        if action is None:
            raise RunError(
                f"torch.distributed: {name} is not carried through failures; do without what needs it, or train with "
                "--pipeline-schedule stock"
            )
        action(self, *arguments, **keywords)

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return len(self.servers)

    def reduce(self, tensor: torch.Tensor, how: Any) -> torch.Tensor:
        """The sum, product, minimum or maximum of what all put in."""
        return self.answers.reduce(self.servers, tensor, how)

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """What all put in."""
        return self.answers.gather(self.servers, tensor)


def hand_over(group: ReplaceableGroup, answers: Answers, servers: tuple[Server, ...]) -> None:
    """From now on, the calls of a process group survive the death of members.

    Args:
        group: it.
        answers: carry the calls out.
        servers: by their rank in the group.
    """
    group.hand_over(servers, Calls(answers, servers, group.rank()).carry_out)


# As torch calls a process group: with lists of one tensor.


def _allreduce(group: Calls, tensors: list[torch.Tensor], opts: Any) -> None:
    (tensor,) = tensors
    tensor.copy_(group.reduce(tensor, opts.reduceOp))


def _broadcast(group: Calls, tensors: list[torch.Tensor], opts: Any) -> None:
    (tensor,) = tensors
    tensor.copy_(group.gather(tensor)[opts.rootRank])


def _all_gather(group: Calls, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], _: Any) -> None:
    for output, found in zip(outputs[0], group.gather(inputs[0]), strict=True):
        output.copy_(found)


def _all_gather_single(group: Calls, output: torch.Tensor, tensor: torch.Tensor, _: Any) -> None:
    output.view(-1).copy_(torch.stack(group.gather(tensor)).view(-1))


def _gather(group: Calls, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> None:
    found = group.gather(inputs[0])
    if opts.rootRank == group.rank:
        _ = [output.copy_(each) for output, each in zip(outputs[0], found, strict=True)]


def _scatter(group: Calls, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> None:
    (output,) = outputs
    knows = opts.rootRank == group.rank
    parts = torch.stack(inputs[0] if knows else [output] * group.size)
    content = torch.cat([parts.view(-1).view(torch.uint8), torch.tensor([knows], dtype=torch.uint8)])
    found = group.gather(content)[opts.rootRank]
    if not found[-1]:
        raise RunError(
            f"torch.distributed: rank {opts.rootRank} of a group is dead, and nobody else knows what it scatters; "
            "do without, or train with --pipeline-schedule stock"
        )
    output.copy_(found[:-1].view(parts.dtype).view(parts.shape)[group.rank])


def _barrier(group: Calls, opts: Any) -> None:
    group.gather(torch.zeros(1))


ACTIONS: Mapping[str, Callable[..., None]] = {
    "allreduce": _allreduce,
    "broadcast": _broadcast,
    "allgather": _all_gather,
    "all_gather_single": _all_gather_single,
    "gather": _gather,
    "scatter": _scatter,
    "barrier": _barrier,
}
