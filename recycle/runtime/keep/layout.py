"""A version as bytes: its tensors one behind the other, and the parts that each live peer of the stage copies."""

from collections.abc import Iterator, Mapping

import torch

from recycle.state.ladder import StatePart


def in_order(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A version with its tensors in the order that all peers have."""
    return dict(sorted(state.items()))


def count_bytes(state: Mapping[str, torch.Tensor]) -> int:
    """How many bytes a version has."""
    return sum(each.nbytes for each in state.values())


def range_of(part: StatePart, total: int) -> range:
    """Which bytes of a version are in a part.

    Args:
        part: which.
        total: bytes of the version.
    """
    return range(part.number * total // part.parts, (part.number + 1) * total // part.parts)


def bytes_of(state: Mapping[str, torch.Tensor], wanted: range) -> Iterator[memoryview]:
    """Some bytes of a version where they lie, tensor by tensor.

    Args:
        state: the version, in order, of contiguous tensors.
        wanted: which bytes.
    """
    start = 0
    for each in state.values():
        here = range(max(wanted.start - start, 0), min(wanted.stop - start, each.nbytes))
        if here:
            # What lies in host memory is not copied.
            content = each.detach().cpu().reshape(-1).view(torch.uint8)
            yield memoryview(content.numpy().data)[here.start : here.stop]
        start += each.nbytes
