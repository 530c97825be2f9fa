"""What such a transport is built on: NCCL, or what stands in for it."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import torch
from torch.distributed import Store

Kind = Literal["send", "receive", "sum", "maximum"]


class Communicator(Protocol):
    """One rank's end of something that carries out operations in the order in which they are given to it.

    Attributes:
        aborted: whether it was given up on this side; set before anything of it ends by that.
    """

    aborted: bool

    @property
    def complete(self) -> bool:
        """Whether all ranks have come.

        Raises:
            RuntimeError: they never will.
        """

    def start(self, kind: Kind, tensor: torch.Tensor) -> int:
        """Give it an operation; gives its place in the order. Sends and receives are of communicators of two.

        Raises:
            RuntimeError: it takes no more.
        """

    def is_over(self, place: int) -> bool:
        """Whether an operation is done, or never will be on this side; it waits for nothing.

        Raises:
            RuntimeError: it went wrong.
        """

    def precede(self, place: int) -> None:
        """Have what this thread starts next on the device come after an operation, or after its end by an abort."""


class Library(Protocol):
    """Makes communicators of one rank.

    Attributes:
        one_queue: whether what this rank starts runs one after the other, whatever communicator it goes to.
        device: where the tensors are that it carries.
    """

    one_queue: bool
    device: torch.device

    def join(self, store: Store, rank: int, size: int) -> Communicator:
        """Come to a communicator; it is complete when all others have come.

        Args:
            store: where its ranks find each other; nobody else uses it.
            rank: of this one.
            size: how many there are.

        Raises:
            RuntimeError: it cannot be made.
        """

    def rest(self, over: Callable[[], bool]) -> None:
        """Let some time pass before the next look; less, if what is waited for can be noticed before."""

    def abort(self, communicators: Sequence[Communicator]) -> None:
        """Give up communicators on this side, all at once, and without waiting for anybody; can be repeated."""
