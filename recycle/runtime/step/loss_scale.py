"""The dynamic loss scale: what a loss is multiplied by so that gradients in half precision do not vanish.

Half precision holds nothing below 2**-24 and nothing above 2**16. So the loss is multiplied by a scale, all gradients
with it, and the reduced gradient is divided by it in full precision. The greatest scale is best with which no gradient
overflows; it is found by trying.
"""

import torch

from recycle.runtime.model_keys import ScaleRule

# Megatron's training has no others.
GROWTH, BACKOFF = 2.0, 0.5


class LossScale:
    """The scale of the next iteration, which is a part of the version that the iteration starts from.

    Args:
        rule: how it changes.

    Attributes:
        state: the scale, the iterations without overflow, and the overflows that are left until it falls; in one
            tensor, so that it is kept, taken back, copied and saved as parameters are.
    """

    def __init__(self, rule: ScaleRule) -> None:
        self._rule = rule
        self.state = torch.tensor([rule.initial, 0.0, rule.hysteresis], dtype=torch.float64)

    @property
    def value(self) -> float:
        """The scale."""
        return self.state[0].item()

    def apply(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss that is differentiated; it is in full precision."""
        return loss * self.value

    def advance(self, finite: bool) -> None:
        """Go on to the next iteration.

        Args:
            finite: whether this one's gradient was.
        """
        scale, calm, patience = self.state.tolist()
        rule = self._rule
        if not finite:
            calm, patience = 0.0, patience - 1
            if patience <= 0:
                scale = max(scale * BACKOFF, rule.least)
        elif calm + 1 == rule.window:
            scale, calm, patience = scale * GROWTH, 0.0, rule.hysteresis
        else:
            calm += 1
        self.state.copy_(torch.tensor([scale, calm, patience], dtype=torch.float64))
