"""The dynamic loss scale: what a loss is multiplied by so that gradients in half precision do not vanish."""

from typing import Self

import msgspec

# Megatron's own values.
SMALLEST = 1.0
GROWTH_INTERVAL = 1000
HYSTERESIS = 2


class LossScale(msgspec.Struct, frozen=True):
    """A scale that grows while gradients are finite, and falls when they are not, as Megatron's does.

    Attributes:
        scale: a power of two, so that scaling changes no bits.
        growth: iterations with finite gradients since one without, or since the scale grew.
        patience: how many iterations without finite gradients are left before the scale falls.
    """

    scale: float = 2.0**32
    growth: int = 0
    patience: int = HYSTERESIS

    def after(self, finite: bool) -> Self:
        """The scale of the next iteration."""
        if not finite:
            patience = self.patience - 1
            return type(self)(max(self.scale / 2, SMALLEST) if patience <= 0 else self.scale, 0, patience)
        if self.growth + 1 == GROWTH_INTERVAL:
            return type(self)(self.scale * 2)
        return type(self)(self.scale, self.growth + 1, self.patience)
