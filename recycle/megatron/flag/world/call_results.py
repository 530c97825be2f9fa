"""Results of collectives, as servers tell them to each other."""

from collections.abc import Sequence
from typing import Self

import msgspec
import torch

from recycle.runtime.net.network import Group


class Value(msgspec.Struct, frozen=True, array_like=True):
    """A tensor in bytes."""

    type: str
    shape: tuple[int, ...]
    content: bytes

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Self:
        """That of a tensor."""
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), content)

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor."""
        dtype = getattr(torch, self.type)
        if not self.content:
            # Torch refuses an empty buffer.
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(bytearray(self.content), dtype=dtype).reshape(self.shape)


class Key(msgspec.Struct, frozen=True, array_like=True):
    """A call: the same one has the same key on all servers.

    Attributes:
        version: of the state in which it is made.
        kind: of its group.
        number: how many calls of this kind and version went before.
        across: whether all ranks of the servers make it, so that all planes have the same result.
    """

    version: int
    kind: str
    number: int
    across: bool


class Result(msgspec.Struct, frozen=True, array_like=True):
    """What a call gave."""

    key: Key
    values: list[Value]


def tell_all(group: Group, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tell a group what one of it has; all others have nothing, and all come here.

    Raises:
        ViewBroken: somebody is gone.
    """
    content = msgspec.msgpack.encode([Value.of(each) for each in values]) if values else b""
    size = torch.tensor([len(content)])
    group.maximum(size)
    told = torch.zeros(int(size), dtype=torch.uint8)
    told[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else 0
    group.sum(told)
    return [each.tensor for each in msgspec.msgpack.decode(told.numpy().tobytes(), type=list[Value])]
