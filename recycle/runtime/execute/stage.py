"""What the runtime knows of a model: a stage that computes, and an update that reduces and steps."""

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import torch


class MicroBatch(NamedTuple):
    """Which data: the same three numbers give the same tokens, labels and dropout on every server.

    Attributes:
        step: the iteration, from 0 over the whole training.
        home: the pipeline whose data it is, wherever it is executed; where pipelines are not alike, its row in the
            batch.
        number: its place there.
    """

    step: int
    home: int
    number: int


class Held(NamedTuple):
    """What a stage keeps of micro-batches that it has not done with.

    Attributes:
        activations: micro-batches between F and I.
        owed: micro-batches between I and W, of which only what W needs is kept.
    """

    activations: int
    owed: int


class TensorSpec(NamedTuple):
    """What travels over a boundary between stages; its gradient is of the same shape and type, and as near."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device = torch.device("cpu")

    def empty(self) -> torch.Tensor:
        """A tensor to receive into."""
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)


class PipelineStage(Protocol):
    """One stage of a model on one server.

    Attributes:
        input: what the previous stage sends; None on the first stage.
        output: what is sent to the next stage; None on the last stage.
        cannot_split: why input and weight gradient cannot be computed apart; empty if they can.
    """

    input: TensorSpec | None
    output: TensorSpec | None
    cannot_split: str

    def forward(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """Compute F: from the previous stage's output (None on the first stage) to this one's (None on the last)."""

    def evaluate(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """Compute F on held-out data, without dropout and without keeping anything but the loss."""

    def input_gradient(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """Compute I: from the gradient of the output (None on the last stage) to that of the input (None on the first).

        The weight gradient stays owed until ``weight_gradient`` is called for the same micro-batch.
        """

    def weight_gradient(self, micro_batch: MicroBatch) -> None:
        """Compute W: add what the micro-batch contributes to the parameters' gradients."""

    def backward(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """Compute B, which is I and W at once."""

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """What the stage trains; the same on all its peers."""

    def take_losses(self) -> Mapping[MicroBatch, float] | None:
        """The losses since the last call, by micro-batch; empty but on the last stage.

        None where nobody asks the peers for theirs.
        """

    def held(self) -> Held:
        """How many micro-batches have activations or owed weight gradients here now."""

    def drop(self) -> None:
        """Forget all micro-batches and losses of an iteration that is not finished."""


class Redo(enum.Enum):
    """What must be made again."""

    NOTHING = enum.auto()
    THIS = enum.auto()
    """The iteration that is being made."""
    LAST = enum.auto()
    """The one before it as well: its gradient cannot be used."""


class EarlySums(Protocol):
    """Sums a part of a chunk's gradients while others are computed."""

    def expect(self, chunk: int) -> None:
        """The next instruction is the last one that adds to a chunk's gradients: sums may begin within it."""


class StageUpdate(Protocol):
    """What a server does with the gradients of its chunks at the end of an iteration.

    Each chunk is reduced and stepped on its own, in the order of the list; what needs all is done with the last one.
    Where the plan's optimizer is global, it is here that stages wait for each other.
    """

    @property
    def confirms(self) -> bool:
        """Whether it makes sure itself that no server gave up any part of the iteration, before a step counts."""

    def collect(self) -> None:
        """A micro-batch's gradients, or a part of them, were added."""

    def validate(self) -> Redo:
        """Find out whether the last step was right, once the next iteration has nothing left to do but to reduce.

        If it was not, it is now, and the gradients of that next iteration are forgotten.
        """

    def start_reduction(self, chunk: int) -> None:
        """All gradients of a chunk were added: begin to sum them, while others are. Nobody is waited for."""

    def reduce(self, chunk: int, *, last: bool) -> None:
        """Sum a chunk's gradients over its live peers, to the gradient of the whole batch.

        All that the server sends in the iteration has been taken.

        Args:
            chunk: which.
            last: whether all others of the server are reduced already.
        """

    def step(self, chunk: int, *, last: bool) -> Redo:
        """Update a chunk's parameters, unless that needs something of the server's other chunks: the last does it then.

        Args:
            chunk: which.
            last: whether the others had their turn: the server has its next version then, and starts the next iteration
                with gradients of zero. Or it says that this cannot be.
        """
