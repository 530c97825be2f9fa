"""How the ranks of a server divide its work, by Megatron's sizes.

A server is all ranks that compute together: those of tensor and context parallelism, and with experts as many of
Megatron's pipelines as its group of experts spans. Its ranks follow each other in Megatron's order, in which tensor
parallelism comes first, then context parallelism and the group of experts.
"""

from math import lcm
from typing import NamedTuple, Self

from recycle.control.membership.view import ServerRank
from recycle.megatron.flag.command.refusals import Settings


class ServerRanks(NamedTuple):
    """Megatron's sizes inside a stage.

    Attributes:
        tensor: ranks among which the layers without experts are split.
        context: ranks among which sequences are split.
        experts: ranks among which experts are divided, and each of them split.
    """

    tensor: int = 1
    context: int = 1
    experts: int = 1

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Those of a job, by Megatron's settings."""
        tensor, context = (int(settings(f"{each}_parallel_size") or 1) for each in ("tensor_model", "context"))
        split = settings("expert_tensor_parallel_size")
        experts = int(settings("expert_model_parallel_size") or 1) * int(tensor if split is None else split)
        return cls(tensor, context, experts)

    @property
    def size(self) -> int:
        """How many ranks a server has."""
        return lcm(self.tensor * self.context, self.experts)

    @property
    def pipelines(self) -> int:
        """How many of Megatron's pipelines go through a server."""
        return self.size // (self.tensor * self.context)

    def place(self, rank: int) -> tuple[int, ServerRank]:
        """The place of a rank's server among all in their order, and which of its ranks it is."""
        place, number = divmod(rank, self.size)
        return place, ServerRank(number, self.size)

    def pipeline(self, number: int) -> int:
        """Which of the pipelines through its server a rank is in."""
        return number // (self.tensor * self.context)

    def same_layers(self, number: int) -> tuple[int, ...]:
        """The ranks of a server that have the same part of the layers without experts, and sum its gradients."""
        return tuple(range(number % self.tensor, self.size, self.tensor))

    def same_experts(self, number: int) -> tuple[int, ...]:
        """The ranks of a server that have the same part of the same experts, and sum its gradients."""
        return tuple(range(number % self.experts, self.size, self.experts))


ONE_RANK = ServerRanks()
"""Of a server that is one process."""
