"""Reduction and optimizer step of a stage of torch parameters."""

import math
from collections.abc import Callable, Iterable, Sequence

import torch

from recycle.runtime.errors import NotFinite, RunError
from recycle.runtime.main_parameters import MainParameters
from recycle.runtime.network import Network
from recycle.runtime.trainee import Listener
from recycle.runtime.versions import Versions

MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


class FlatGradients:
    """All gradients of a stage in one buffer per type, so that one reduction carries them.

    Args:
        parameters: whose ``grad`` becomes a view of a buffer; autograd adds to it in place.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        groups: dict[torch.dtype, list[torch.nn.Parameter]] = {}
        for parameter in parameters:
            if parameter.requires_grad:
                groups.setdefault(parameter.dtype, []).append(parameter)
        self.buffers: list[torch.Tensor] = []
        for dtype, members in groups.items():
            buffer = torch.zeros(sum(each.numel() for each in members), dtype=dtype)
            place = 0
            for each in members:
                each.grad = buffer[place : place + each.numel()].view_as(each)
                place += each.numel()
            self.buffers.append(buffer)

    def squared_norm(self) -> torch.Tensor:
        """The sum of all squares, in double precision."""
        return torch.stack([buffer.double().square().sum() for buffer in self.buffers]).sum()

    def are_finite(self) -> bool:
        """Whether every value is a finite number."""
        return all(
            bool(torch.isfinite(torch.linalg.vector_norm(buffer, math.inf))) for buffer in self.buffers if len(buffer)
        )

    def scale(self, factor: float) -> None:
        """Multiply every gradient."""
        for buffer in self.buffers:
            buffer.mul_(factor)

    def zero(self) -> None:
        """Start the next iteration."""
        for buffer in self.buffers:
            buffer.zero_()


class TorchUpdate:
    """Sum the gradients over the live peers, and step a torch optimizer.

    A stage scales each micro-batch's loss by 1 / M, and 1 / D is applied here, both of the full job; where the loss is
    a sum over tokens, only their number in the whole batch is. So the sum over whoever is alive is the fault-free
    gradient. Megatron applies 1 / D before the sum. Here it comes after: powers of two give the same bits, and the
    rounding of others does not depend on who is alive. Sums of gradients in bfloat16 hardly round at all in float32,
    so that training in bfloat16 is mostly the same to the bit.

    Args:
        parameters: the stage's.
        make_optimizer: makes the optimizer of some parameters.
        pipelines: D of the full job.
        clip: the largest norm that the gradient of the whole model may have; None for no limit. It needs the norms of
            all stages, so it goes with a global optimizer only.
        staggered: whether stages step on their own; otherwise all wait for each other before they reduce.
        keep: whether the state before the last step is kept, so that the step can be undone.

    Attributes:
        listener: hears of every step; None for nobody.

    Raises:
        RunError: clipping with a staggered optimizer.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        make_optimizer: MakeOptimizer,
        pipelines: int,
        clip: float | None = None,
        staggered: bool = False,
        keep: bool = False,
    ) -> None:
        if clip is not None and staggered:
            raise RunError(
                f"clip is {clip:g}: the norm of the whole gradient is known only when every stage is done, and this "
                "plan's stages step on their own; make the plan with --optimizer global, or do without clipping"
            )
        self.main = MainParameters(parameters)
        self.gradients = FlatGradients(self.main)
        self.main.collect_gradients()
        self.optimizer = make_optimizer(list(self.main))
        self.versions = Versions(list(self.main), self.optimizer)
        self.listener: Listener | None = None
        self._keep = keep
        self._pipelines = pipelines
        self._clip = clip
        self._staggered = staggered

    def connect(
        self,
        network: Network,
        after_reduction: Callable[[], None] = lambda: None,
        tokens: Callable[[], int] | None = None,
    ) -> None:
        """Work over the groups of a view from now on, with gradients of zero.

        Args:
            network: of the server.
            after_reduction: what else is done to the gradients before they are used.
            tokens: asked once in an iteration for the number of tokens in the whole batch, where the loss is their sum.
        """
        self._network = network
        self._after_reduction = after_reduction
        self._divisor = tokens or (lambda: self._pipelines)
        self.gradients.zero()

    def reduce(self) -> None:
        """Sum over the peers; then limit the norm, if it is to be limited.

        Raises:
            NotFinite: the sum holds a value that is no finite number.
        """
        if not self._staggered:
            self._network.barrier()
        for buffer in self.gradients.buffers:
            self._network.peers.sum(buffer)
        divisor = self._divisor()
        if divisor > 1:
            self.gradients.scale(1 / divisor)
        self._after_reduction()
        if not self.gradients.are_finite():
            raise NotFinite(f"the gradient of stage {self._network.server.stage} is not finite")
        if self._clip is None:
            return
        peers = len(self._network.view.peers(self._network.server.stage))
        total = self.gradients.squared_norm() / peers
        self._network.all.sum(total)
        norm = math.sqrt(total.item())
        if norm > self._clip:
            self.gradients.scale(self._clip / norm)

    def step(self) -> None:
        """Update the parameters, and set the gradients to zero."""
        if self._keep:
            self.versions.keep()
        if self.listener is not None:
            self.listener.stepping(self.gradients.buffers)
        self.optimizer.step()
        self.main.copy_back()
        self.versions.advance()
        self.gradients.zero()

    def follow(self, gradients: Sequence[torch.Tensor]) -> None:
        """Make the step of a peer whose listener got these."""
        for own, other in zip(self.gradients.buffers, gradients, strict=True):
            own.copy_(other)
        self.step()

    def undo(self) -> None:
        """Take the last step back."""
        if self.listener is not None:
            self.listener.undone()
        self.versions.undo()
        self.main.copy_back()

    def adopt(self, step: int) -> None:
        """The main parameters and the optimizer's state were replaced by those of a step."""
        self.versions.adopt(step)
        self.main.copy_back()
