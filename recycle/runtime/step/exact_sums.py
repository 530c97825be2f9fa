"""Sums of gradients that have the same bits in every order and on any number of servers.

A sum of floats depends on the order of its addends, and which servers live decides the order. Here each addend, which
is what one micro-batch gives to one gradient, is first rounded to a multiple of a quantum, by itself. In double
precision all sums of such multiples below 2**53 quanta are exact, and exact sums have no order.

The quantum follows from a bound on the addends, and the bound from the greatest addend of the iteration before: both
are the same on every server, whichever servers live. Where an addend is above the bound, the sum is not used, and the
iteration is made again with a bound that fits.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

# All bits of a double, sign apart; and the exponent of the smallest positive single.
MANTISSA = 53
SMALLEST = -149
# The bound of addends of which nothing is known: none fits but zero, so that the iteration is made again.
NOTHING = SMALLEST - 1
# How much greater than in the iteration before an addend may be, as an exponent of two.
HEADROOM = 12
# Numbers that are handled at once: they and their copy stay in the processor's cache.
CHUNK = 65_536


class Chunk(NamedTuple):
    """A part of one gradient: its place in the list, what one micro-batch gave, and the sum over micro-batches."""

    gradient: int
    addend: torch.Tensor
    total: torch.Tensor


class ExactSums:
    """The sums of the addends that appear in some tensors, one after another.

    Args:
        gradients: where addends appear, in single precision and contiguous; they start at zero.
        addends: the most that any element may get in an iteration, on all servers together.

    Attributes:
        totals: the sums, one after another.
    """

    def __init__(self, gradients: Sequence[torch.Tensor], addends: int) -> None:
        assert all(each.dtype == torch.float32 for each in gradients), "only singles are summed exactly"
        # Rounding by way of a large number needs two bits above the bound.
        self._carry = max(2, (addends - 1).bit_length())
        device = gradients[0].device if gradients else None
        self.totals = torch.zeros(sum(each.numel() for each in gradients), dtype=torch.float64, device=device)
        self._chunks: list[Chunk] = []
        self._edges = list(accumulate((each.numel() for each in gradients), initial=0))
        place = 0
        for number, gradient in enumerate(gradients):
            for part in torch.split(gradient.view(-1), CHUNK):
                self._chunks.append(Chunk(number, part, self.totals[place : place + part.numel()]))
                place += part.numel()
        self._scratch = torch.empty(CHUNK, dtype=torch.float64, device=device)
        self._bounds = [NOTHING] * len(gradients)
        self._greatest = torch.zeros(len(gradients), dtype=torch.float64)

    def start(self, bounds: Sequence[int]) -> None:
        """Begin an iteration, or begin it again: forget all addends.

        Args:
            bounds: of each gradient's addends, as exponents of two.
        """
        self.totals.zero_()
        self._greatest.zero_()
        self._bounds = list(bounds)

    def collect(self) -> None:
        """Take what one micro-batch gave out of the gradients, and set them to zero."""
        for number, addend, total in self._chunks:
            low, high = torch.aminmax(addend)
            magnitude = max(-low.item(), high.item())
            if magnitude == 0:
                continue
            # What is no number is never below anything.
            greatest = max(self._greatest[number].item(), magnitude if magnitude <= math.inf else math.inf)
            # Where nothing was added, the peers may be about to change it.
            self._greatest[number] = greatest
            shift = 1.5 * 2.0 ** (MANTISSA - 1 + quantum(self._bounds[number], self._carry))
            rounded = self._scratch[: addend.numel()]
            rounded.copy_(addend).add_(shift).sub_(shift)
            total.add_(rounded)
            addend.zero_()

    def part(self, which: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """What peers reduce of some gradients that follow each other: the totals, of which they make the sum.

        Returns:
            The totals, and of each gradient the greatest addend, of which they make the maximum.
        """
        return self._totals(which), self._greatest[which]

    @property
    def finite(self) -> bool:
        """Whether all addends of all peers were numbers."""
        return bool(self._greatest.isfinite().all())

    @property
    def fits(self) -> bool:
        """Whether all addends of all peers were below their bounds; if not, the sums mean nothing."""
        return all(
            greatest <= 2.0**bound for greatest, bound in zip(self._greatest.tolist(), self._bounds, strict=True)
        )

    def mean(self, divisor: float, means: Sequence[torch.Tensor], which: slice) -> None:
        """Write some of the sums, divided and then rounded, into tensors of the gradients' sizes."""
        for number in range(len(means))[which]:
            total = self._totals(slice(number, number + 1))
            means[number].view(-1).copy_(total.div_(divisor))

    def _totals(self, which: slice) -> torch.Tensor:
        """The sums of some gradients that follow each other."""
        first, last, _ = which.indices(len(self._greatest))
        return self.totals[self._edges[first] : self._edges[last]]

    def next_bounds(self) -> list[int]:
        """The bounds that follow from this iteration's addends, for it to be made again, or for the next one.

        Together with the parameters they decide what follows, so they are a part of the training's state.
        """
        return [
            math.frexp(greatest)[1] + HEADROOM if 0 < greatest < math.inf else bound
            for greatest, bound in zip(self._greatest.tolist(), self._bounds, strict=True)
        ]


def quantum(bound: int, carry: int) -> int:
    """Of what all addends below a bound are made multiples: all three are exponents of two.

    Args:
        bound: of the addends.
        carry: of their number.
    """
    return max(bound + carry - MANTISSA, SMALLEST)
