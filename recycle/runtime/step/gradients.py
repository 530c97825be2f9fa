"""Gradients of a stage, in one buffer per type and device."""

import math
from collections.abc import Iterable

import torch


class FlatGradients:
    """Room for all gradients of a stage, in one buffer per type and device, so that one reduction carries them.

    Args:
        parameters: whose gradients.

    Attributes:
        buffers: one per type and device.
        views: the part of each parameter, in the parameters' order and of their shapes.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        members = list(parameters)
        sizes: dict[tuple[torch.dtype, torch.device], int] = {}
        for each in members:
            kind = each.dtype, each.device
            sizes[kind] = sizes.get(kind, 0) + each.numel()
        room = {kind: torch.zeros(size, dtype=kind[0], device=kind[1]) for kind, size in sizes.items()}
        self.buffers = list(room.values())
        self.views: list[torch.Tensor] = []
        self._places: list[tuple[torch.Tensor, int, int]] = []
        places = dict.fromkeys(sizes, 0)
        for each in members:
            kind = each.dtype, each.device
            place = places[kind]
            places[kind] = end = place + each.numel()
            self._places.append((room[kind], place, end))
            self.views.append(room[kind][place:end].view_as(each))

    def part(self, which: slice) -> list[torch.Tensor]:
        """The part of each buffer that belongs to some parameters that follow each other."""
        ends: dict[int, tuple[torch.Tensor, int, int]] = {}
        for buffer, start, end in self._places[which]:
            _, first, _ = ends.get(id(buffer), (buffer, start, end))
            ends[id(buffer)] = buffer, first, end
        return [buffer[first:end] for buffer, first, end in ends.values()]

    def are_finite(self, which: slice) -> bool:
        """Whether every value of some parameters that follow each other is a finite number."""
        return all(
            bool(torch.isfinite(torch.linalg.vector_norm(part, math.inf))) for part in self.part(which) if len(part)
        )

    def scale(self, factor: float) -> None:
        """Multiply every gradient."""
        for buffer in self.buffers:
            buffer.mul_(factor)

    def zero(self) -> None:
        """Set every gradient to zero."""
        for buffer in self.buffers:
            buffer.zero_()


def square(gradients: Iterable[torch.Tensor]) -> float:
    """The sum of all squares, in double precision."""
    return math.fsum(each.double().square_().sum().item() for each in gradients)
